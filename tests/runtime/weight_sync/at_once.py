"""Runs the tests of a file that are marked `at_once` beside one another: most of their time they wait for
deadlines. Each has a thread and an event loop of its own, so that none holds up another. The other tests of
such a file run meanwhile, so that none of them may patch anything."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

NUM_AT_ONCE = 8
"""So few that on a busy machine no healthy engine misses a deadline."""

LONGEST_SECONDS = 600.0
"""Until the outcome of a test, with the wait for those that began before it."""


class TestsAtOnce:
    """The outcomes of marked tests. With the first of a file all of its marked tests begin."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Future[None]] = {}
        self._pools: list[ThreadPoolExecutor] = []

    def run(self, item: pytest.Function) -> None:
        """Wait for one test. Raises what it raises."""
        if item.nodeid not in self._outcomes:
            self._begin(
                [
                    other
                    for other in item.session.items
                    if isinstance(other, pytest.Function)
                    and other.path == item.path
                    and other.get_closest_marker("at_once")
                ]
            )
        self._outcomes[item.nodeid].result(timeout=LONGEST_SECONDS)

    def _begin(self, items: list[pytest.Function]) -> None:
        pool = ThreadPoolExecutor(max_workers=NUM_AT_ONCE, thread_name_prefix="at-once")
        self._pools.append(pool)
        for item in items:
            self._outcomes[item.nodeid] = pool.submit(_run, item)

    def end(self) -> None:
        """Begin no other test, and wait for those that run."""
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)


def _run(item: pytest.Function) -> None:
    arguments = item.callspec.params if hasattr(item, "callspec") else {}
    # as it is written: pytest-asyncio has put another one in its place
    test = getattr(item.module, item.originalname)
    asyncio.run(test(**arguments))


@contextmanager
def messages_of_this_thread() -> Iterator[list[str]]:
    """The warnings that the product logs in the thread of the caller, while others run beside it: what
    `caplog` is for a test that runs alone."""
    messages: list[str] = []
    own = threading.get_ident()

    class _Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == own:
                messages.append(record.getMessage())

    handler = _Collect(logging.WARNING)
    logger = logging.getLogger("grpo_runtime")
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
