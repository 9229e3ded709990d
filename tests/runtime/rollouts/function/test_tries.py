"""How often what failed is tried again, with a function that is a fake."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.rollouts.function.tries import Sample, Tries
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import FunctionFailedError, GenerateRequest, Rollout

ALWAYS = 99


class Process:
    """One that never ends."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class Function:
    """Makes each sample in the try with its number: one of number 3 fails twice."""

    is_awake = True

    def __init__(self, *made_in: int) -> None:
        self._made_in = made_in
        self.tries: list[str] = []
        requests = [GenerateRequest((1,), seed=place) for place in range(len(made_in))]
        prompt = Prompt(index=0, content="", columns={})
        self.group = Group(step=0, number=0, prompt=prompt, requests=requests)

    @asynccontextmanager
    async def process(self) -> AsyncIterator[Process]:
        self.tries.append("shared")
        yield Process()

    @asynccontextmanager
    async def own_process(self) -> AsyncIterator[Process]:
        self.tries.append("own")
        yield Process()

    async def rest(self) -> None:
        self.is_awake = False

    async def make(self, sample: Sample, _: object, finish: object) -> None:
        if len(self.tries) < self._made_in[sample.place]:
            raise FunctionFailedError("the tool is away")
        finish(Rollout(sample.request.prompt_ids, (1,), (-1.0,), (), True, "fake"))  # type: ignore[operator]

    async def sample(self) -> None:
        def take(group: Group, place: int, rollout: Rollout) -> None:
            group.rollouts[place] = rollout

        def failed(where: str, error: Exception) -> FunctionFailedError:
            return FunctionFailedError(f"{where}: {error}")

        source = Tries(self, self, make=self.make, failed=failed, pauses_seconds=(0.0, 0.0))  # type: ignore[arg-type]
        await source.sample([self.group], take=take)


async def test_a_step_bears_any_number_of_failures_while_samples_are_finished_between_them() -> None:
    function = Function(1, 2, 3, 4, 5, 6)
    await function.sample()
    assert function.group.is_sampled and not function.is_awake
    assert function.tries == ["shared"] * 6


async def test_the_third_failure_in_a_row_is_the_last_one() -> None:
    function = Function(3)
    await function.sample()
    assert function.tries == ["shared", "shared", "own"]
    with pytest.raises(FunctionFailedError, match=r"the tool is away\. It was tried 3 times$"):
        await Function(4).sample()


async def test_a_sample_that_always_fails_ends_the_call_once_the_others_are_finished() -> None:
    function = Function(1, 2, ALWAYS, 3)
    with pytest.raises(FunctionFailedError, match=r"It was tried 3 times$"):
        await function.sample()
    assert function.group.missing == [2]
    assert function.tries == ["shared"] * 4 + ["own"]


async def test_a_sample_that_fails_before_others_can_finish_ends_the_call_after_three_tries() -> None:
    function = Function(ALWAYS, 4)
    with pytest.raises(FunctionFailedError, match=r"It was tried 3 times$"):
        await function.sample()
    assert len(function.tries) == 3
