"""Several environments of a job: which makes which groups, and what they share."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from pod_builder import run_config

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.seeds import derive_seed
from grpo_runtime.rollouts.agents.environments import Shared, by_column, by_weight, environments_in
from grpo_runtime.rollouts.collect import Take
from grpo_runtime.rollouts.function.tries import Part, Sample
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
    place_of = by_weight([1.0, 2.0, 5.0])
    shared = Shared([[source] for source in sources], engines, place_of=place_of)  # type: ignore[arg-type]
    await shared.sample(groups(800), take=lambda *_: None, stays_awake=stays_awake)
    counts = [len(source.numbers) for source in sources]
    assert sum(counts) == 800
    assert [round(count / 100) for count in counts] == [1, 2, 5]
    assert engines.num_rests == (0 if stays_awake else 1)
    places = Counter(place_of(group) for group in reversed(groups(800)))
    assert [places[place] for place in range(3)] == counts


async def test_one_that_fails_ends_the_others_with_its_own_error():
    engines, sources = RestingEngines(), [NotedSource(fails=True), NotedSource(ends=False)]
    shared = Shared([[source] for source in sources], engines, place_of=by_weight([1.0, 1.0]))  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="lost"):
        await shared.sample(groups(20), take=lambda *_: None)
    assert sources[1].was_cancelled
    assert engines.num_rests == 0


async def test_a_row_may_name_its_environment_and_each_process_of_it_is_asked():
    engines, sources = RestingEngines(), [[NotedSource()], [NotedSource(), NotedSource()]]
    asked = groups(4)
    for group, plays in zip(asked, ("tool", "game", "game", "tool"), strict=True):
        group.prompt = Prompt(index=0, content="a", columns={"plays": plays})
    place_of = by_column("plays", names=["game", "tool"])
    await Shared(sources, engines, place_of=place_of).sample(asked, take=lambda *_: None)  # type: ignore[arg-type]
    assert [[source.numbers for source in each] for each in sources] == [[[1, 2]], [[0, 3], [0, 3]]]


def test_those_that_make_groups_are_what_rows_name_or_all_of_a_job_that_has_weights():
    rows = [Prompt(index=0, content="a", columns={"plays": plays}) for plays in ("game", "tool", "game")]
    environments = [{"name": name, "function": "a:b"} for name in ("chess", "game", "tool")]
    named = {"source": "pvc://data/rows.jsonl", "environment": "plays"}
    assert environments_in(rows, run_config(environments=environments, dataset=named)) == {"game", "tool"}
    assert environments_in(rows, run_config(environments=environments)) == {"chess", "game", "tool"}
    assert environments_in(rows, run_config()) == set()


@pytest.mark.parametrize(("group_size", "of"), [(8, 3), (1, 4), (4, 4), (2, 1)])
def test_every_sample_is_of_one_process_and_all_have_as_many(group_size: int, of: int):
    prompt, requests = Prompt(index=0, content="a", columns={}), [GenerateRequest((1,), 0)] * group_size
    samples = [
        Sample(Group(step=0, number=number, prompt=prompt, requests=requests), place)
        for number in range(12)
        for place in range(group_size)
    ]
    counts = [sum(Part(place, of).has(sample) for sample in samples) for place in range(of)]
    assert sum(counts) == len(samples) and max(counts) - min(counts) <= 1
