"""The process of a user's function, for all that use it: started again where it has ended, and others for
last tries.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from grpo_runtime.errors import UserError
from grpo_runtime.process.line_worker import WorkerFailedError, WorkerProgram
from grpo_runtime.rollouts.function.function_process import FunctionProcess
from grpo_runtime.rollouts.interface import FunctionFailedError

HANG_SECONDS = 10.0
"""How long the event loop of a process that others use as well may stand before it is taken for hung."""


class SharedProcess:
    """The process of a function. `async with` starts and ends it; starting raises UserError when there is no
    such function."""

    def __init__(self, program: WorkerProgram, *, hang_seconds: float = HANG_SECONDS) -> None:
        self._program = program
        self.hang_seconds = hang_seconds
        self._process: asyncio.Task[FunctionProcess] | None = None
        """The newest one that all share, which may still be starting."""
        self._last: asyncio.Task[FunctionProcess] | None = None
        """The one that last tries share, while there are any."""

    async def __aenter__(self) -> Self:
        try:
            await self._running()
        except WorkerFailedError as error:
            raise UserError(str(error)) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        found, self._process, self._last = (self._process, self._last), None, None
        for starting in found:
            if starting is None:
                continue
            starting.cancel()
            [process] = await asyncio.gather(starting, return_exceptions=True)
            if isinstance(process, FunctionProcess):
                await process.close(why="the run has ended")

    @asynccontextmanager
    async def own_process(self) -> AsyncIterator[FunctionProcess]:
        """A process for the last try to make one completion that was in the hands of a process at its end.
        Which completion has ended a process that several share, or blocked it, is not known; what ends this
        one is its try. Raises what `process` raises."""
        process = await self._start()
        try:
            yield process
        finally:
            await process.close(why="its only try is over")

    @asynccontextmanager
    async def last_process(self) -> AsyncIterator[FunctionProcess]:
        """A process for the last try to make one completion, without what the function has left in the
        process of its tries before. All such tries share it, and it ends with the last of them. Raises what
        `process` raises."""
        starting = self._last = self._usable(self._last)
        process = await asyncio.shield(starting)
        try:
            with process.used():
                yield process
        finally:
            if not process.is_used:
                if self._last is starting:
                    self._last = None
                await process.close(why="the last tries are over")

    @asynccontextmanager
    async def process(self) -> AsyncIterator[FunctionProcess]:
        """The process that all share, for one try to make a completion. Where it has ended, another one is
        started, for all that need one. Raises WorkerFailedError when that does not start, and UserError when
        it does not find the function.

        A try that fails ends the process, with what else the function has begun, which must not continue in
        the next try. Where others use the process it ends only if it hangs.
        """
        process = await self._running()
        try:
            with process.used():
                yield process
        except (FunctionFailedError, WorkerFailedError):
            if not process.is_used:
                await process.close(why="a try to make a completion has failed")
            elif await process.hangs(after_seconds=self.hang_seconds):
                await process.close(why=blocked_message(self.hang_seconds))
            raise

    async def _running(self) -> FunctionProcess:
        self._process = self._usable(self._process)
        # for all who wait for it
        return await asyncio.shield(self._process)

    def _usable(self, newest: "asyncio.Task[FunctionProcess] | None") -> "asyncio.Task[FunctionProcess]":
        """This one, which may still be starting; where it has ended, or there is none, another one."""
        if newest is None or (newest.done() and not _is_up(newest)):
            return asyncio.create_task(self._start())
        return newest

    async def _start(self) -> FunctionProcess:
        process = FunctionProcess(self._program)
        await process.start()
        return process


def blocked_message(seconds: float) -> str:
    """What is said of a process that does not answer."""
    return f"its event loop was blocked for more than {seconds:g} s"


def _is_up(starting: "asyncio.Task[FunctionProcess]") -> bool:
    """Whether the process has started and not ended."""
    if not starting.done() or starting.cancelled() or starting.exception() is not None:
        return False
    return not starting.result().ended.done()
