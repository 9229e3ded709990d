"""Work in a thread of its own."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

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
