"""The work queue: jobs to reconcile, each by one worker at a time, with backoff after a failure."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from grpo_operator.observe.cache import Key

Handler = Callable[[Key], Awaitable[float | None]]
"""Reconciles one job; returns in how many seconds to do so again, or None."""
OnError = Callable[[Key, Exception, float], None]
"""Called with each failure and the delay before the next try."""


@dataclass(frozen=True)
class Backoff:
    """Exponential delays with jitter, so that jobs that failed together are not retried together."""

    first_seconds: float = 0.2
    limit_seconds: float = 60.0
    jitter: float = 0.3

    def delay(self, failures: int, *, chance: float) -> float:
        """Seconds to wait after `failures` consecutive failures; `chance` in [0, 1) spreads them."""
        delay = min(self.limit_seconds, self.first_seconds * 2.0 ** min(failures - 1, 30))
        return delay * (1 + self.jitter * (2 * chance - 1))


class WorkQueue:
    """Keys of jobs. A key that is added while a worker has it is handled once more afterwards."""

    def __init__(
        self,
        handler: Handler,
        *,
        on_error: OnError,
        backoff: Backoff | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._handler = handler
        self._on_error = on_error
        self._backoff = backoff or Backoff()
        self._chance = chance
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._busy: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}

    def add(self, key: Key) -> None:
        """Handle this job as soon as a worker is free."""
        timer = self._timers.pop(key, None)
        if timer:
            timer.cancel()
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: Key, delay_seconds: float) -> None:
        """Handle this job after a delay, or earlier when it is added meanwhile."""
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_seconds
        known = self._timers.get(key)
        if known:
            if known.when() <= due:
                return
            known.cancel()
        self._timers[key] = loop.call_at(due, self.add, key)

    async def run(self, *, num_workers: int) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(num_workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._busy.add(key)
            try:
                await self._handle(key)
            finally:
                self._busy.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)

    async def _handle(self, key: Key) -> None:
        try:
            requeue_after = await self._handler(key)
        except Exception as error:  # every failure of one job is retried with backoff
            failures = self._failures.get(key, 0) + 1
            self._failures[key] = failures
            delay = self._backoff.delay(failures, chance=self._chance())
            self._on_error(key, error, delay)
            self.add_after(key, delay)
            return
        self._failures.pop(key, None)
        if requeue_after is not None:
            self.add_after(key, requeue_after)
