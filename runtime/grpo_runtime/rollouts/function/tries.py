"""Makes completions with a user's function, each in a task of its own, and those that failed once more."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from grpo_runtime.process.line_worker import WorkerFailedError
from grpo_runtime.rollouts.collect import Take
from grpo_runtime.rollouts.function.function_process import FunctionProcess
from grpo_runtime.rollouts.function.shared_process import SharedProcess
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import Engines, FunctionFailedError, GenerateRequest, Rollout

logger = logging.getLogger(__name__)

PAUSES_SECONDS = (5.0, 30.0)
"""Before each other try to make what is not finished: what the function waits for may come back."""


@dataclass(frozen=True)
class Sample:
    """A completion that is made: its group, and its index there."""

    group: Group
    place: int

    @property
    def request(self) -> GenerateRequest:
        return self.group.requests[self.place]

    @property
    def row(self) -> str:
        return f"row {self.group.prompt.index + 1} of the dataset"


@dataclass(frozen=True)
class Part:
    """Every `of`th sample, from `place` on: the same in every attempt."""

    place: int
    of: int

    def has(self, sample: Sample) -> bool:
        """Whether a sample is in it. The samples of a group are in turn in all parts."""
        number = sample.group.number * len(sample.group.requests) + sample.place
        return number % self.of == self.place


ALL = Part(0, 1)

Make = Callable[[Sample, FunctionProcess, Callable[[Rollout], None]], Awaitable[None]]
"""Makes a sample with a process, and hands it to what it is given: it may be finished before the function has
ended. Raises FunctionFailedError where another try may succeed."""


class Tries:
    """A source of samples. Several calls of `sample` may run at the same time, all with the same process."""

    def __init__(
        self,
        function: SharedProcess,
        engines: Engines,
        *,
        make: Make,
        failed: Callable[[str, WorkerFailedError], FunctionFailedError],
        pauses_seconds: Sequence[float] = PAUSES_SECONDS,
        part: Part = ALL,
    ) -> None:
        """`failed` is the error to raise where (as the end of a sentence) a process failed, and `part` the
        samples that it makes of those that it is asked for."""
        self._function = function
        self._engines = engines
        self._make_one = make
        self._failed = failed
        self._pauses_seconds = pauses_seconds
        self._part = part

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        """Make every sample of its part that `groups` miss. Where the function fails for one of them, what of
        these is not finished begins anew with its first turn; other calls continue.

        Raises FunctionFailedError for the last failure in a row of which no other try is left. One behind
        which a sample was finished is in another row, so a large step bears any number of accidents, and a
        sample that always fails ends the call once no other one is finished beside it.
        """
        missing = (Sample(group, place) for group in groups for place in group.missing)
        left = [sample for sample in missing if self._part.has(sample)]

        def finish(sample: Sample, rollout: Rollout) -> None:
            left.remove(sample)
            take(sample.group, sample.place, rollout)

        num_failures = 0
        while left:
            num_before = len(left)
            is_last_try = num_failures == len(self._pauses_seconds)
            process = self._function.own_process() if is_last_try else self._function.process()
            try:
                await self._make(list(left), process, finish=finish)
            except FunctionFailedError as error:
                num_failures = num_failures + 1 if len(left) == num_before else 1
                await self._recover(error, num_failures, num_left=len(left))
        if not stays_awake:
            await self._engines.rest()

    async def _recover(self, error: FunctionFailedError, num_failures: int, *, num_left: int) -> None:
        """Wait for another try, or raise the error when there is none."""
        pauses = self._pauses_seconds
        if num_left == 0:
            logger.warning("%s. All completions were finished", error)
        elif num_failures > len(pauses):
            raise FunctionFailedError(f"{error}. It was tried {num_failures} times") from error
        else:
            pause = pauses[num_failures - 1]
            logger.warning(
                "%s. In %g s the %d completions that are not finished begin anew", error, pause, num_left
            )
            await asyncio.sleep(pause)

    async def _make(
        self,
        samples: Sequence[Sample],
        opened: AbstractAsyncContextManager[FunctionProcess],
        *,
        finish: Callable[[Sample, Rollout], None],
    ) -> None:
        """All of these, which are of one step. The first failure ends the others, and so does the end of the
        process."""
        try:
            async with opened as process:
                making = [
                    asyncio.ensure_future(self._make_one(sample, process, partial(finish, sample)))
                    for sample in samples
                ]
                together = asyncio.gather(*making)
                try:
                    either: set[asyncio.Future[Any]] = {together, process.ended}
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    if not together.done():
                        raise WorkerFailedError(process.ended.result())
                    together.result()
                finally:
                    together.cancel()
                    for task in making:
                        task.cancel()
                    await asyncio.gather(together, *making, return_exceptions=True)
        except WorkerFailedError as error:
            raise self._failed(f"in step {samples[0].group.step + 1}", error) from error
