"""What goes on beside the main thread: one call in a thread of its own, or an event loop in one."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T], *, name: str) -> Future[T]:
    """Start `work` in a thread, which does not keep the process from ending. The Future has its result or its
    error."""
    future: Future[T] = Future()
    # from here on it cannot be cancelled
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # handed on by the Future
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class LoopThread:
    """Runs coroutines in its thread until it is closed, or until the end of an `async with`. Processes that
    these start may end with the thread that has started them, so it is closed last."""

    def __init__(self, name: str) -> None:
        """`name` is that of the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def __aenter__(self) -> "LoopThread":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns or raises. When this is cancelled, so is the work, and this ends once the work
        has."""
        found: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda task: _copy_outcome(task, into=found))

        def cancel() -> None:
            tasks[0].cancel()

        self._loop.call_soon_threadsafe(begin)
        waiting = asyncio.wrap_future(found)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not found.done():
                self._loop.call_soon_threadsafe(cancel)
                await asyncio.wait({waiting})
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work`, for a caller that need not wait for its end: one without an event loop, or one that
        continues without it when the thread is blocked."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Call it in the thread. May be called in any thread. Raises RuntimeError once it is closed."""
        self._loop.call_soon_threadsafe(call, *arguments)

    @asynccontextmanager
    async def entered(self, manager: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
        """`manager`, which is entered and left in the thread."""
        entered = await self.run(manager.__aenter__())
        try:
            yield entered
        finally:
            await self.run(manager.__aexit__(None, None, None))

    async def close(self) -> None:
        """Cancel what still runs in the thread, and end it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        self._loop.run_forever()
        try:
            self._loop.run_until_complete(_cancel_all())
        finally:
            self._loop.close()


def _copy_outcome(task: "asyncio.Task[T]", *, into: "Future[T]") -> None:
    if task.cancelled():
        into.cancel()
    elif error := task.exception():
        into.set_exception(error)
    else:
        into.set_result(task.result())


async def run_together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in their order. The first error ends the others, and is raised once they have ended."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        # one that raises does not end the others
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
