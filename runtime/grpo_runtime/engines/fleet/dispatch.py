"""Gives requests to engines, and gives them to another engine when one is lost.

A request carries its seed, so that sampling it twice gives the same completion. Requests come in bundles,
each of which is one call.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from grpo_runtime.engines.fleet.bundle import Bundle
from grpo_runtime.engines.fleet.errors import BadAnswerError, EngineRefusedError
from grpo_runtime.errors import UserError
from grpo_runtime.rollouts.errors import EngineError, RolloutLostError
from grpo_runtime.rollouts.interface import Generation, OnFinished, Rollout

MAX_ENGINES_PER_REQUEST = 5
"""A request that failed so often is itself the cause."""


class Worker(Protocol):
    """One engine that may be given work. `key` is unique to its process."""

    @property
    def key(self) -> str: ...

    async def sample(self, bundle: Bundle) -> list[Rollout]:
        """All of a bundle's completions, in order. Raises EngineError or BadAnswerError."""
        ...


class WorkerSource(Protocol):
    """The engines that may be given work, which change at any time."""

    def workers(self) -> Mapping[str, Worker]:
        """By key: the engines that may be given more work now."""
        ...

    def is_lost(self, key: str) -> bool:
        """Whether an engine that was given work will never answer."""
        ...

    def mark_unhealthy(self, key: str, error: Exception) -> None:
        """Note that an engine failed. It is given no work until it has been looked at."""
        ...

    async def changed(self, *, timeout_seconds: float) -> None:
        """Return when the fleet has changed, or after the timeout."""
        ...


@dataclass(frozen=True)
class DispatchLimits:
    """`max_in_flight` counts the samples at an engine; `empty_wait_seconds` is how long requests wait while
    no engine may be given work."""

    max_in_flight: int
    empty_wait_seconds: float
    poll_seconds: float = 1.0


class Dispatch:
    """One call of `generate`: hands out its requests and collects the rollouts in the order given."""

    def __init__(
        self,
        source: WorkerSource,
        bundles: Sequence[Bundle],
        *,
        limits: DispatchLimits,
        clock: Callable[[], float],
        on_finished: OnFinished | None = None,
    ) -> None:
        """`on_finished` is called for the samples of a call when it is answered."""
        self.num_resent = 0
        """Samples asked of another engine because the first one failed or was lost."""
        self._source = source
        self._bundles = bundles
        self._limits = limits
        self._clock = clock
        self._on_finished = on_finished
        self._waiting = deque(range(len(self._bundles)))
        self._results: dict[int, list[Rollout]] = {}
        self._failures: defaultdict[int, list[str]] = defaultdict(list)
        """By bundle, what engines answered instead of it."""
        self._running: dict[asyncio.Task[list[Rollout]], tuple[int, str]] = {}
        self._wake = asyncio.Event()
        self._done: deque[asyncio.Task[list[Rollout]]] = deque()
        self._finished_at = clock()
        self._given: Mapping[str, int] = {}
        self._num_done = 0

    def generation(self) -> Generation:
        """How far it has come; engines by key. May be called in another thread."""
        return Generation(
            num_samples=self._num_samples(range(len(self._bundles))),
            num_done=self._num_done,
            quiet_seconds=self._clock() - self._finished_at,
            given=self._given,
        )

    async def run(self) -> list[Rollout]:
        """All rollouts.

        Raises UserError when an engine refuses a request as wrong, RolloutLostError after the stated wait
        without an engine, and EngineError for a request that ends badly wherever it goes.
        """
        last_served = self._clock()
        fleet = asyncio.ensure_future(self._watch_fleet())
        try:
            while len(self._results) < len(self._bundles):
                self._hand_out()
                if self._running:
                    last_served = self._clock()
                elif self._clock() - last_served > self._limits.empty_wait_seconds:
                    raise RolloutLostError(
                        f"no rollout engine for {self._limits.empty_wait_seconds:g} s, with "
                        f"{self._num_samples(self._waiting)} of "
                        f"{self._num_samples(range(len(self._bundles)))} samples still to be drawn"
                    )
                await self._wake.wait()
                self._wake.clear()
                self._collect()
                self._cancel_lost()
        finally:
            fleet.cancel()
            for task in self._running:
                task.cancel()
            await asyncio.gather(fleet, *self._running, return_exceptions=True)
        return [rollout for index in range(len(self._bundles)) for rollout in self._results[index]]

    def _num_samples(self, indices: Iterable[int]) -> int:
        return sum(self._bundles[index].num_samples for index in indices)

    def _hand_out(self) -> None:
        load: Counter[str] = Counter()
        for index, key in self._running.values():
            load[key] += self._bundles[index].num_samples
        workers = self._source.workers()
        while self._waiting and workers:
            # the least loaded one; by key among equals, so that every run is the same
            worker = min(workers.values(), key=lambda candidate: (load[candidate.key], candidate.key))
            num_samples = self._bundles[self._waiting[0]].num_samples
            if load[worker.key] + num_samples > self._limits.max_in_flight:
                break
            index = self._waiting.popleft()
            task = asyncio.ensure_future(worker.sample(self._bundles[index]))
            self._running[task] = (index, worker.key)
            task.add_done_callback(self._note_done)
            load[worker.key] += num_samples
        self._given = +load  # another mapping each time, because it is read in another thread

    def _note_done(self, task: asyncio.Task[list[Rollout]]) -> None:
        self._done.append(task)
        self._wake.set()

    async def _watch_fleet(self) -> None:
        while True:
            await self._source.changed(timeout_seconds=self._limits.poll_seconds)
            self._wake.set()

    def _collect(self) -> None:
        while self._done:
            task = self._done.popleft()
            index, key = self._running.pop(task)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                self._results[index] = task.result()
                self._num_done += self._bundles[index].num_samples
                self._finished_at = self._clock()
                self._pass_on(index)
            elif isinstance(error, asyncio.CancelledError | EngineError | BadAnswerError):
                self._send_again(index, key, error)
            else:
                raise error

    def _pass_on(self, index: int) -> None:
        if self._on_finished is not None:
            first = self._num_samples(range(index))
            for number, rollout in enumerate(self._results[index], start=first):
                self._on_finished(number, rollout)

    def _send_again(self, index: int, key: str, error: BaseException) -> None:
        if isinstance(error, EngineRefusedError) and error.status == 400:
            raise UserError(f"an engine refuses a prompt, shorten it or raise engine.maxModelLen: {error}")
        if isinstance(error, Exception):
            self._source.mark_unhealthy(key, error)
            self._failures[index].append(str(error))
        if len(self._failures[index]) >= MAX_ENGINES_PER_REQUEST:
            answers = "; ".join(dict.fromkeys(self._failures[index]))
            raise EngineError(f"a request failed {MAX_ENGINES_PER_REQUEST} times: {answers}")
        self.num_resent += self._bundles[index].num_samples
        self._waiting.appendleft(index)

    def _cancel_lost(self) -> None:
        for task, (_, key) in self._running.items():
            if not task.done() and self._source.is_lost(key):
                task.cancel()
