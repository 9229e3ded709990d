"""Gives requests to engines, and gives them to another engine when one is lost.

A request carries its seed, so that sampling it twice gives the same completion. Requests come in bundles,
each of which is one call of an engine.
"""

import asyncio
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from grpo_runtime.engines.fleet.engine_calls import BadAnswerError, Bundle
from grpo_runtime.engines.fleet.engine_client import EngineRefusedError
from grpo_runtime.rollouts.interface import (
    EngineError,
    Generation,
    OnFinished,
    RequestRefusedError,
    Rollout,
    RolloutLostError,
)

MAX_ENGINES_PER_REQUEST = 5
"""A request that failed so often is itself the cause."""
NUM_REMEMBERED_PROMPTS = 4096
"""Of so many prompts it is known which engine has them."""


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


@dataclass(eq=False)
class _Work:
    """The bundles of one call of `run`, and what has become of each by its index."""

    bundles: Sequence[Bundle]
    on_finished: OnFinished | None
    ended: asyncio.Future[None]
    """Done when every bundle is answered; has the error of work that cannot be done."""
    results: dict[int, list[Rollout]] = field(default_factory=dict)
    failures: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What engines answered instead of it."""

    def num_samples(self) -> int:
        return sum(bundle.num_samples for bundle in self.bundles)

    def num_done(self) -> int:
        return sum(self.bundles[index].num_samples for index in list(self.results))

    def take(self, index: int, rollouts: list[Rollout]) -> None:
        """The answer for a bundle."""
        self.results[index] = rollouts
        if self.on_finished is not None:
            first = sum(bundle.num_samples for bundle in self.bundles[:index])
            for number, rollout in enumerate(rollouts, start=first):
                self.on_finished(number, rollout)
        if len(self.results) == len(self.bundles):
            self.end(None)

    def end(self, error: Exception | None) -> None:
        """Let `run` return or raise; the first end counts."""
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


_Piece = tuple[_Work, int]
"""A work, and the index of one of its bundles."""


class Dispatch:
    """Hands out the bundles of all calls of `run`, those of earlier calls first, and collects what engines
    answer. A call that fails ends alone.

    The engine with the fewest samples gets the next bundle. With `num_tokens`, which says how many tokens a
    bundle can come to, it is the one with the fewest tokens. Then the bundles of a group, of all turns and in
    all calls, stay with one engine, which has their beginning in its cache, until it has more than a bundle
    more to do than the others.
    """

    def __init__(
        self,
        source: WorkerSource,
        *,
        limits: DispatchLimits,
        clock: Callable[[], float],
        num_tokens: Callable[[Bundle], int] | None = None,
    ) -> None:
        self.num_resent = 0
        """Samples asked of another engine because the first one failed or was lost."""
        self._source = source
        self._limits = limits
        self._clock = clock
        self._num_tokens = num_tokens
        self._open: tuple[_Work, ...] = ()
        """Those of open calls, replaced as a whole because they are read in another thread."""
        self._waiting: deque[_Piece] = deque()
        self._running: dict[asyncio.Task[list[Rollout]], tuple[_Piece, str, float]] = {}
        """With the key of the engine that was asked, and when."""
        self._done: deque[asyncio.Task[list[Rollout]]] = deque()
        self._wake = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._finished_at = self._last_served = clock()
        self._given: Mapping[str, int] = {}
        self._engines: OrderedDict[tuple[int, ...], str] = OrderedDict()
        """Prompt of a group -> the engine that was last asked for completions of it, the newest ones last."""

    def generation(self) -> Generation | None:
        """How far the open calls have come, engines by key; None while there is none. May be called in
        another thread."""
        works = self._open
        if not works:
            return None
        return Generation(
            num_samples=sum(work.num_samples() for work in works),
            num_done=sum(work.num_done() for work in works),
            quiet_seconds=self._clock() - self._finished_at,
            given=self._given,
        )

    async def run(self, bundles: Sequence[Bundle], *, on_finished: OnFinished | None = None) -> list[Rollout]:
        """All rollouts, in the order of the bundles. `on_finished` is called for the samples of a bundle when
        it is answered.

        Raises RequestRefusedError when an engine refuses a request as wrong, RolloutLostError after the
        stated wait without an engine, and EngineError for a request that ends badly wherever it goes.
        """
        if not bundles:
            return []
        work = _Work(bundles, on_finished, asyncio.get_running_loop().create_future())
        self._begin(work)
        try:
            await work.ended
        finally:
            await self._leave(work)
        return [rollout for index in range(len(bundles)) for rollout in work.results[index]]

    def _begin(self, work: _Work) -> None:
        if self._serving is None or self._serving.done():
            self._finished_at = self._last_served = self._clock()
            self._serving = asyncio.ensure_future(self._serve())
        self._open = (*self._open, work)
        pieces = [(work, index) for index in range(len(work.bundles))]
        if work.bundles[0].is_evaluation:
            # the trainer waits for it, and for what was asked before it does not
            self._waiting.extendleft(reversed(pieces))
        else:
            self._waiting.extend(pieces)
        self._wake.set()

    async def _leave(self, work: _Work) -> None:
        """Forget work that is over, and cancel what of it still runs."""
        self._open = tuple(other for other in self._open if other is not work)
        self._waiting = deque(piece for piece in self._waiting if piece[0] is not work)
        ending: list[asyncio.Task[Any]] = [
            task for task, (piece, _, _) in self._running.items() if piece[0] is work
        ]
        for task in ending:
            del self._running[task]
        if not self._open and self._serving is not None:
            ending.append(self._serving)
            self._serving = None
        for task in ending:
            task.cancel()
        self._wake.set()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _serve(self) -> None:
        """Hand out and collect, until the last call ends."""
        fleet = asyncio.ensure_future(self._watch_fleet())
        try:
            while True:
                self._hand_out()
                self._end_without_engines()
                await self._wake.wait()
                self._wake.clear()
                self._collect()
                self._cancel_lost()
        except Exception as error:  # of the source: every call raises it
            self._end_all(error)
        finally:
            fleet.cancel()
            await asyncio.gather(fleet, return_exceptions=True)

    def _hand_out(self) -> None:
        given: Counter[str] = Counter()
        load: Counter[str] = Counter()
        for (work, index), key, _ in self._running.values():
            given[key] += work.bundles[index].num_samples
            load[key] += self._cost(work.bundles[index])
        workers = self._source.workers()
        while self._waiting and workers:
            work, index = self._waiting[0]
            if work.ended.done():
                self._waiting.popleft()
                continue
            bundle = work.bundles[index]
            most = self._limits.max_in_flight - bundle.num_samples
            roomy = [worker for worker in workers.values() if given[worker.key] <= most]
            if not roomy:
                break
            worker = self._choose(roomy, bundle, load)
            self._waiting.popleft()
            task = asyncio.ensure_future(worker.sample(bundle))
            self._running[task] = ((work, index), worker.key, self._clock())
            task.add_done_callback(self._note_done)
            given[worker.key] += bundle.num_samples
            load[worker.key] += self._cost(bundle)
        self._given = +given  # another mapping each time, because it is read in another thread

    def _cost(self, bundle: Bundle) -> int:
        return bundle.num_samples if self._num_tokens is None else self._num_tokens(bundle)

    def _choose(self, workers: Sequence[Worker], bundle: Bundle, load: Mapping[str, int]) -> Worker:
        """The least loaded one, or the one that has the group's prompt unless it has too much to do."""
        # by key among equals, so that every run is the same
        chosen = min(workers, key=lambda candidate: (load[candidate.key], candidate.key))
        if self._num_tokens is not None:
            most = load[chosen.key] + self._cost(bundle)
            before = self._engines.pop(bundle.group_prompt, None)
            chosen = next((w for w in workers if w.key == before and load[w.key] <= most), chosen)
            self._engines[bundle.group_prompt] = chosen.key
            if len(self._engines) > NUM_REMEMBERED_PROMPTS:
                self._engines.popitem(last=False)
        return chosen

    def _end_without_engines(self) -> None:
        """End every call once no engine has had any work for the stated time."""
        if self._running:
            self._last_served = self._clock()
        elif self._clock() - self._last_served > self._limits.empty_wait_seconds:
            waiting = sum(work.bundles[index].num_samples for work, index in self._waiting)
            self._end_all(
                RolloutLostError(
                    f"no rollout engine for {self._limits.empty_wait_seconds:g} s, with {waiting} of "
                    f"{sum(work.num_samples() for work in self._open)} samples still to be drawn"
                )
            )

    def _end_all(self, error: Exception) -> None:
        for work in self._open:
            work.end(error)

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
            if task not in self._running:  # of a call that has ended
                continue
            piece, key, asked_at = self._running.pop(task)
            work, index = piece
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                self._finished_at = self._clock()
                seconds = self._finished_at - asked_at
                work.take(index, [replace(each, sampling_seconds=seconds) for each in task.result()])
            elif isinstance(error, asyncio.CancelledError | EngineError | BadAnswerError):
                self._send_again(piece, key, error)
            elif isinstance(error, Exception):
                work.end(error)
            else:
                raise error

    def _send_again(self, piece: _Piece, key: str, error: BaseException) -> None:
        work, index = piece
        if isinstance(error, EngineRefusedError) and error.status == 400:
            what = "an engine refuses a prompt, shorten it or raise engine.maxModelLen"
            work.end(RequestRefusedError(f"{what}: {error}", said=str(error)))
            return
        if isinstance(error, Exception):
            self._source.mark_unhealthy(key, error)
            work.failures[index].append(str(error))
        if len(work.failures[index]) >= MAX_ENGINES_PER_REQUEST:
            answers = "; ".join(dict.fromkeys(work.failures[index]))
            work.end(EngineError(f"a request failed {MAX_ENGINES_PER_REQUEST} times: {answers}"))
            return
        self.num_resent += work.bundles[index].num_samples
        self._waiting.appendleft(piece)

    def _cancel_lost(self) -> None:
        for task, (_, key, _) in self._running.items():
            if not task.done() and self._source.is_lost(key):
                task.cancel()
