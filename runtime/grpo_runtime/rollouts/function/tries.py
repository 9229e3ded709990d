"""Makes completions with a user's function, each in a task of its own, and each that failed once more."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from grpo_runtime.process.background import run_together
from grpo_runtime.process.line_worker import WorkerFailedError
from grpo_runtime.rollouts.collect import Take
from grpo_runtime.rollouts.function.function_process import FunctionProcess
from grpo_runtime.rollouts.function.shared_process import SharedProcess
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import Engines, FunctionFailedError, GenerateRequest, GivenUp, Rollout

logger = logging.getLogger(__name__)

PAUSES_SECONDS = (5.0, 30.0)
"""Before each other try to make a completion: what the function waits for may come back."""
MOST_ALONE = 4
"""How many completions have processes of their own at a time."""
MOST_FAILED_ALONE = 8
"""After so many that fail there one after the other, no single completion is at fault."""


@dataclass(frozen=True)
class Sample:
    """A completion that is made: its group, and its index there."""

    group: Group
    place: int
    num_failures: int = 0
    """How many tries to make it have failed."""

    @property
    def request(self) -> GenerateRequest:
        return self.group.requests[self.place]

    @property
    def row(self) -> str:
        return f"row {self.group.prompt.index + 1} of the dataset"

    @property
    def where(self) -> str:
        """Which one it is, as a part of a sentence."""
        return f"for {self.row} in step {self.group.step + 1}"


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
        self._places = asyncio.Semaphore(MOST_ALONE)
        self._num_failed_alone = 0
        """Completions that failed in processes of their own since one was finished anywhere."""

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        """Make every sample of its part that `groups` miss. One for which the function fails begins anew with
        its first turn, and is given up when no other try is left; the others continue meanwhile."""
        missing = (Sample(group, place) for group in groups for place in group.missing)
        await run_together(self._make(sample, take) for sample in missing if self._part.has(sample))
        if not stays_awake:
            await self._engines.rest()

    async def _make(self, sample: Sample, take: Take) -> None:
        is_process_lost, num_tries = False, 0
        for pause in (*self._pauses_seconds, None):
            trying = _Try(sample, self._count_finished(take))
            opened = self._opened(trying, is_last=pause is None, is_process_lost=is_process_lost)
            try:
                async with opened as process:
                    await self._run(trying, process)
                return
            except WorkerFailedError as error:
                failure, is_process_lost = self._failed(f"in step {sample.group.step + 1}", error), True
                num_tries += 1
            except FunctionFailedError as error:
                # a process that hangs, or that nobody else uses, has been ended
                failure, is_process_lost = error, is_process_lost or process.ended.done()
                num_tries += 1
            except _NotTriedError as error:
                failure = FunctionFailedError(f"{failure}, and {error}")
            if trying.is_finished:
                logger.warning("%s. Its completion was finished", failure)
                return
            sample = replace(sample, num_failures=num_tries)
            if pause is not None:
                logger.warning("%s. In %g s its completion begins anew", failure, pause)
                await asyncio.sleep(pause)
        why = f"{failure}. It was tried {num_tries} times" if num_tries > 1 else f"{failure}"
        logger.warning("%s, so this completion is given up", why)
        take(sample.group, sample.place, GivenUp(why, num_tries))

    def _opened(
        self, trying: "_Try", *, is_last: bool, is_process_lost: bool
    ) -> AbstractAsyncContextManager[FunctionProcess]:
        """A process for a try."""
        if not is_last:
            return self._function.process()
        return self._alone(trying) if is_process_lost else self._function.last_process()

    @asynccontextmanager
    async def _alone(self, trying: "_Try") -> AsyncIterator[FunctionProcess]:
        """A process for one completion alone. Raises _NotTriedError where so many have failed in theirs that
        no single completion is at fault, and what `own_process` raises."""
        async with self._places:
            if self._num_failed_alone >= MOST_FAILED_ALONE:
                raise _NotTriedError(
                    f"it was not tried alone, because {self._num_failed_alone} others, one after the other, "
                    "failed so"
                )
            async with self._function.own_process() as process:
                try:
                    yield process
                except (WorkerFailedError, FunctionFailedError):
                    # one that is cancelled has not failed
                    self._num_failed_alone += not trying.is_finished
                    raise

    def _count_finished(self, take: Take) -> Take:
        def finish(group: Group, place: int, found: Rollout | GivenUp) -> None:
            self._num_failed_alone = 0
            take(group, place, found)

        return finish

    async def _run(self, trying: "_Try", process: FunctionProcess) -> None:
        """Make a sample. Raises WorkerFailedError when the process ends meanwhile."""
        making = asyncio.ensure_future(self._make_one(trying.sample, process, trying.finish))
        try:
            either: set[asyncio.Future[Any]] = {making, process.ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not making.done():
                raise WorkerFailedError(process.ended.result())
            making.result()
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)


class _NotTriedError(Exception):
    """A completion was not tried once more, though tries were left. The message is the end of a sentence."""


class _Try:
    """One try to make a sample. It may be finished before the function has ended."""

    def __init__(self, sample: Sample, take: Take) -> None:
        self.sample = sample
        self.is_finished = False
        self._take = take

    def finish(self, rollout: Rollout) -> None:
        self.is_finished = True
        self._take(self.sample.group, self.sample.place, rollout)
