"""How often what failed is tried again, and in which process, with a function that is a fake."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.process.line_worker import WorkerFailedError
from grpo_runtime.rollouts.function.tries import MOST_ALONE, MOST_FAILED_ALONE, Sample, Tries
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import FunctionFailedError, GenerateRequest, GivenUp, Rollout

ALWAYS = 99
LOST = -1
HANGS = -2


class Process:
    """One that ends when it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class Function:
    """Makes each sample in the try with its number: one of number 3 fails twice. One of number LOST ends its
    process in each try, and one of number HANGS does too, until it is alone and hangs."""

    is_awake = True

    def __init__(self, *made_in: int) -> None:
        self.made_in = made_in
        self._source: Tries | None = None
        self._shared: Process | None = None
        self.hanging: asyncio.Queue[int] = asyncio.Queue()
        self.tries: dict[int, list[str]] = {place: [] for place in range(len(made_in))}
        requests = [GenerateRequest((1,), seed=place) for place in range(len(made_in))]
        prompt = Prompt(index=0, content="", columns={})
        self.group = Group(step=0, number=0, prompt=prompt, requests=requests)

    @asynccontextmanager
    async def process(self) -> AsyncIterator[Process]:
        if self._shared is None or self._shared.ended.done():
            self._shared = Process("shared")
        yield self._shared

    @asynccontextmanager
    async def own_process(self) -> AsyncIterator[Process]:
        yield Process("own")

    @asynccontextmanager
    async def last_process(self) -> AsyncIterator[Process]:
        yield Process("last")

    async def rest(self) -> None:
        self.is_awake = False

    async def make(self, sample: Sample, process: Process, finish: object) -> None:
        tries, number = self.tries[sample.place], self.made_in[sample.place]
        tries.append(process.name)
        await asyncio.sleep(0)  # the others are in the process too
        if number == HANGS and process.name == "own":
            self.hanging.put_nowait(sample.place)
            await asyncio.Event().wait()
        if number in (LOST, HANGS) and not process.ended.done():
            process.ended.set_result("it died")
        if process.ended.done():
            await asyncio.Event().wait()
        if len(tries) < number:
            raise FunctionFailedError(f"the tool is away for {sample.num_failures}")
        finish(Rollout(sample.request.prompt_ids, (1,), (-1.0,), (), True, "fake"))  # type: ignore[operator]

    async def sample(self) -> list[Rollout | GivenUp | None]:
        def take(group: Group, place: int, found: Rollout | GivenUp) -> None:
            assert group.rollouts[place] is None
            group.rollouts[place] = found

        def failed(where: str, error: WorkerFailedError) -> FunctionFailedError:
            return FunctionFailedError(f"it failed {where}: {error}")

        if self._source is None:
            self._source = Tries(self, self, make=self.make, failed=failed, pauses_seconds=(0.0, 0.0))  # type: ignore[arg-type]
        await self._source.sample([self.group], take=take)
        assert self.group.is_sampled and not self.is_awake
        return self.group.rollouts


async def test_a_completion_that_fails_is_begun_again_twice_and_no_other_one_is() -> None:
    function = Function(1, 2, 3, 1)
    assert all(isinstance(found, Rollout) for found in await function.sample())
    assert function.tries == {
        0: ["shared"],
        1: ["shared"] * 2,
        2: ["shared", "shared", "last"],
        3: ["shared"],
    }


async def test_a_completion_that_fails_thrice_is_given_up_with_its_failure() -> None:
    function = Function(1, ALWAYS, 2)
    first, second, third = await function.sample()
    assert isinstance(first, Rollout) and isinstance(third, Rollout)
    assert second == GivenUp("the tool is away for 2. It was tried 3 times")
    assert function.tries[1] == ["shared", "shared", "last"]


async def test_of_those_in_a_process_that_ends_only_the_one_at_fault_is_given_up() -> None:
    """Which it is shows in the last try, which each of them has alone."""
    function = Function(1, LOST, 1)
    first, second, third = await function.sample()
    assert second == GivenUp("it failed in step 1: it died. It was tried 3 times")
    assert isinstance(first, Rollout) and isinstance(third, Rollout)
    assert function.tries[1] == ["shared", "shared", "own"]
    assert function.tries[2] == ["shared", "shared", "own"]


async def test_where_all_that_are_alone_end_their_processes_the_others_are_not_tried_alone() -> None:
    function = Function(*[LOST] * (MOST_FAILED_ALONE + MOST_ALONE + 5))
    found = await function.sample()
    assert all(isinstance(each, GivenUp) for each in found)
    num_alone = sum("own" in tries for tries in function.tries.values())
    assert MOST_FAILED_ALONE <= num_alone < MOST_FAILED_ALONE + MOST_ALONE
    assert isinstance(found[-1], GivenUp)
    why = r"it failed in step 1: it died, and it was not tried alone, because \d+ others, .* tried 2 times"
    assert re.fullmatch(why, found[-1].why)


async def test_one_that_is_cancelled_in_a_process_of_its_own_has_not_failed_there() -> None:
    function = Function(*[HANGS] * MOST_ALONE)
    for _ in range(MOST_FAILED_ALONE // MOST_ALONE):
        sampling = asyncio.create_task(function.sample())
        for _ in range(MOST_ALONE):
            await function.hanging.get()
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
    function.made_in = (LOST,) * MOST_ALONE
    for found in await function.sample():
        assert found == GivenUp("it failed in step 1: it died. It was tried 3 times")
