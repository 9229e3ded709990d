"""Several environments of a job: which makes which groups, and what they share."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.seeds import derive_seed
from grpo_runtime.rollouts.agents.environments import Shared
from grpo_runtime.rollouts.collect import Take
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import EngineError, GenerateRequest


class NotedSource:
    """A source, which is a fake: it notes its groups, and fails where it is told to."""

    def __init__(self, *, fails: bool = False, ends: bool = True) -> None:
        self.numbers: list[int] = []
        self.was_cancelled = False
        self._fails = fails
        self._ends = ends

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        assert stays_awake, "another source may still need the engines"
        self.numbers += [group.number for group in groups]
        if self._fails:
            raise EngineError("lost")
        if not self._ends:
            try:
                await asyncio.Event().wait()
            finally:
                self.was_cancelled = True


class RestingEngines:
    """Engines, which are a fake: they count how often they were let to rest."""

    num_rests = 0

    async def rest(self) -> None:
        self.num_rests += 1


def groups(count: int) -> list[Group]:
    prompt = Prompt(index=0, content="a", columns={})
    return [
        Group(
            step=0,
            number=number,
            prompt=prompt,
            requests=[GenerateRequest((1,), derive_seed(3, step=0, prompt_index=number, sample_index=0))],
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("stays_awake", [False, True])
async def test_groups_are_shared_by_weight_and_always_in_the_same_way(stays_awake: bool):
    engines, sources = RestingEngines(), [NotedSource(), NotedSource(), NotedSource()]
    shared = Shared(sources, engines, weights=[1.0, 2.0, 5.0])  # type: ignore[arg-type]
    await shared.sample(groups(800), take=lambda *_: None, stays_awake=stays_awake)
    counts = [len(source.numbers) for source in sources]
    assert sum(counts) == 800
    assert [round(count / 100) for count in counts] == [1, 2, 5]
    assert engines.num_rests == (0 if stays_awake else 1)
    places = Counter(shared.place_of(group) for group in reversed(groups(800)))
    assert [places[place] for place in range(3)] == counts


async def test_one_that_fails_ends_the_others_with_its_own_error():
    engines, sources = RestingEngines(), [NotedSource(fails=True), NotedSource(ends=False)]
    shared = Shared(sources, engines, weights=[1.0, 1.0])  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="lost"):
        await shared.sample(groups(20), take=lambda *_: None)
    assert sources[1].was_cancelled
    assert engines.num_rests == 0
