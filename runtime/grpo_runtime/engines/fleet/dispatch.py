"""Gives requests to engines, and gives them to another engine when one is lost or hands them over.

A request carries its seed, so that sampling it twice gives the same completion. Requests come in bundles,
each of which is one call of an engine. A completion that an engine hands over is a bundle of its own from
then on.
"""

import asyncio
from bisect import insort
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Protocol

from grpo_runtime.engines.fleet.engine_calls import BadAnswerError, Bundle, joined
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
MOST_EMPTY_IN_A_ROW = 16
"""A request that was handed over so often without one more token counts as failed. An engine hands over what
waits in it, too: that counts only of the request that is first in turn."""
_NEVER_BEGUN = (
    f"engines got new weights {MOST_EMPTY_IN_A_ROW} times before they sampled one token of it: raise "
    "async.syncEverySteps"
)
_NEVER_WHOLE = (
    f"engines got new weights {MOST_EMPTY_IN_A_ROW} times before it was finished, and by its parameters it "
    "begins anew each time: let it be shorter, or raise async.syncEverySteps"
)
TURNS_AHEAD = 8
"""An engine that has so many turns more to do than another one still gets those of its sessions: about as
many as a bundle of a group has samples. With only one, up to a third of the turns would move where tools take
time between them, and another engine would compute all that was said before."""
NUM_REMEMBERED = 4096
"""Of so many sessions and prompts it is known which engine has them."""


class Worker(Protocol):
    """One engine that may be given work. `key` is unique to its process."""

    @property
    def key(self) -> str: ...

    def may_take(self, bundle: Bundle) -> bool:
        """Whether it may go on with what there is of the bundle: not with older weights."""
        ...

    async def sample(self, bundle: Bundle) -> list[Rollout]:
        """All of a bundle's completions, in order, some perhaps aborted. Raises EngineError or
        BadAnswerError."""
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

    def goes_on(self, bundle: Bundle) -> bool:
        """Whether completions of the bundle that an engine hands over go on from their tokens. Others are
        sampled anew."""
        ...

    async def hand_over(self, key: str) -> None:
        """Let an engine that is lost answer with what it has sampled, if it still can. Returns when it has,
        or after a while."""
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
    """The samples of one call of `run`, and what has become of each by its number."""

    num_samples: int
    on_finished: OnFinished | None
    ended: asyncio.Future[None]
    """Done when every sample is there; has the error of work that cannot be done."""
    results: dict[int, Rollout] = field(default_factory=dict)

    def take(self, number: int, rollout: Rollout) -> None:
        """A sample is finished."""
        self.results[number] = rollout
        if self.on_finished is not None:
            self.on_finished(number, rollout)
        if len(self.results) == self.num_samples:
            self.end(None)

    def end(self, error: Exception | None) -> None:
        """Let `run` return or raise; the first end counts."""
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


@dataclass(frozen=True, eq=False)
class _Piece:
    """A bundle of a work. Its samples are those of the work from number `first` on."""

    work: _Work
    first: int
    bundle: Bundle
    turn: tuple[bool, int]
    """Those with a lower one are given to engines before it: evaluations, for which the trainer waits, and
    what was asked earlier. It keeps its turn when it is sent again."""
    failures: tuple[str, ...] = ()
    """What engines answered instead of one more token of it."""
    num_empty: int = 0
    """How often in a row it was handed over without one more token."""


class Dispatch:
    """Hands out the bundles of all calls of `run`, those of earlier calls first, and collects what engines
    answer. A call that fails ends alone.

    The engine with the fewest samples gets the next bundle. With `num_tokens`, which says how many tokens a
    bundle can come to, it is the one with the fewest tokens. Then the bundles of a group, in all calls, stay
    with one engine, which has their beginning in its cache, until it has more than a bundle more to do than
    the others. The turns of a session always do, until their engine has more than TURNS_AHEAD of them more.
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
        self.num_handed_over = 0
        """How often a sample went on from the tokens that an engine had handed over."""
        self._source = source
        self._limits = limits
        self._clock = clock
        self._num_tokens = num_tokens
        self._open: tuple[_Work, ...] = ()
        """Those of open calls, replaced as a whole because they are read in another thread."""
        self._waiting: list[_Piece] = []
        """In the order of their turns."""
        self._num_begun = 0
        """Bundles so far."""
        self._running: dict[asyncio.Task[list[Rollout]], tuple[_Piece, str, float]] = {}
        """With the key of the engine that was asked, and when."""
        self._done: deque[asyncio.Task[list[Rollout]]] = deque()
        self._handing_over: dict[str, asyncio.Task[None]] = {}
        """By the key of an engine that is lost."""
        self._wake = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._finished_at = self._last_served = clock()
        self._given: Mapping[str, int] = {}
        self._engines: OrderedDict[int | tuple[int, ...], str] = OrderedDict()
        """Session, or prompt of a group -> the engine that was last asked for a completion of it. The newest
        are last."""

    def generation(self) -> Generation | None:
        """How far the open calls have come, engines by key; None while there is none. May be called in
        another thread."""
        works = self._open
        if not works:
            return None
        return Generation(
            num_samples=sum(work.num_samples for work in works),
            num_done=sum(len(work.results) for work in works),
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
        num_samples = sum(bundle.num_samples for bundle in bundles)
        work = _Work(num_samples, on_finished, asyncio.get_running_loop().create_future())
        self._begin(work, bundles)
        try:
            await work.ended
        finally:
            await self._leave(work)
        return [work.results[number] for number in range(num_samples)]

    def _begin(self, work: _Work, bundles: Sequence[Bundle]) -> None:
        if self._serving is None or self._serving.done():
            self._finished_at = self._last_served = self._clock()
            self._serving = asyncio.ensure_future(self._serve())
        self._open = (*self._open, work)
        starts = accumulate((bundle.num_samples for bundle in bundles), initial=0)
        for first, bundle in zip(starts, bundles, strict=False):
            self._num_begun += 1
            self._wait(_Piece(work, first, bundle, turn=(not bundle.is_evaluation, self._num_begun)))
        self._wake.set()

    def _wait(self, piece: _Piece) -> None:
        """Let a piece wait for its turn."""
        insort(self._waiting, piece, key=_turn)

    async def _leave(self, work: _Work) -> None:
        """Forget work that is over, and cancel what of it still runs."""
        self._open = tuple(other for other in self._open if other is not work)
        self._waiting = [piece for piece in self._waiting if piece.work is not work]
        ending: list[asyncio.Task[Any]] = [
            task for task, (piece, _, _) in self._running.items() if piece.work is work
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
            others = [fleet, *self._handing_over.values()]
            self._handing_over.clear()
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    def _hand_out(self) -> None:
        given: Counter[str] = Counter()
        load: Counter[str] = Counter()
        for piece, key, _ in self._running.values():
            given[key] += piece.bundle.num_samples
            load[key] += self._cost(piece.bundle)
        workers = self._source.workers()
        left: list[_Piece] = []
        for place, piece in enumerate(self._waiting):
            bundle = piece.bundle
            if piece.work.ended.done():
                continue
            allowed = [worker for worker in workers.values() if worker.may_take(bundle)]
            most = self._limits.max_in_flight - bundle.num_samples
            roomy = [worker for worker in allowed if given[worker.key] <= most]
            if not roomy:
                if len(allowed) == len(workers):
                    left += self._waiting[place:]
                    break
                # others need not wait for the engines that may go on with this one
                left.append(piece)
                continue
            worker = self._choose(roomy, bundle, load)
            task = asyncio.ensure_future(worker.sample(bundle))
            self._running[task] = (piece, worker.key, self._clock())
            task.add_done_callback(self._note_done)
            given[worker.key] += bundle.num_samples
            load[worker.key] += self._cost(bundle)
        self._waiting = left
        self._given = +given  # another mapping each time, because it is read in another thread

    def _cost(self, bundle: Bundle) -> int:
        return bundle.num_samples if self._num_tokens is None else self._num_tokens(bundle)

    def _choose(self, workers: Sequence[Worker], bundle: Bundle, load: Mapping[str, int]) -> Worker:
        """The one that has its session, else the one that has its group's prompt, unless these have too much
        to do, else the least loaded one."""
        # by key among equals, so that every run is the same
        least = min(workers, key=lambda candidate: (load[candidate.key], candidate.key))

        def remembered(of: int | tuple[int, ...], *, ahead: int) -> Worker | None:
            key, most = self._engines.get(of), load[least.key] + ahead * self._cost(bundle)
            return next((worker for worker in workers if worker.key == key and load[key] <= most), None)

        chosen = None if bundle.session is None else remembered(bundle.session, ahead=TURNS_AHEAD)
        if chosen is None and self._num_tokens is not None:
            chosen = remembered(bundle.group_prompt, ahead=1) or least
            self._remember(bundle.group_prompt, chosen)
        chosen = chosen or least
        if bundle.session is not None:
            self._remember(bundle.session, chosen)
        return chosen

    def _remember(self, of: int | tuple[int, ...], worker: Worker) -> None:
        self._engines[of] = worker.key
        self._engines.move_to_end(of)
        if len(self._engines) > NUM_REMEMBERED:
            self._engines.popitem(last=False)

    def _end_without_engines(self) -> None:
        """End every call once no engine has had any work for the stated time."""
        if self._running:
            self._last_served = self._clock()
        elif self._clock() - self._last_served > self._limits.empty_wait_seconds:
            waiting = sum(piece.bundle.num_samples for piece in self._waiting)
            self._end_all(
                RolloutLostError(
                    f"no rollout engine for {self._limits.empty_wait_seconds:g} s, with {waiting} of "
                    f"{sum(work.num_samples for work in self._open)} samples still to be drawn"
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
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                self._finished_at = self._clock()
                self._take(piece, task.result(), seconds=self._finished_at - asked_at)
            elif isinstance(error, asyncio.CancelledError | EngineError | BadAnswerError):
                self._send_again(piece, key, error)
            elif isinstance(error, Exception):
                piece.work.end(error)
            else:
                raise error

    def _take(self, piece: _Piece, answer: Sequence[Rollout], *, seconds: float) -> None:
        """The answer for a bundle: samples that are finished, and those that the engine hands over."""
        bundle, work = piece.bundle, piece.work
        for index, found in enumerate(answer):
            rollout = replace(found, sampling_seconds=seconds)
            number = piece.first + index
            if rollout.is_aborted:
                self._go_on(replace(piece, first=number, bundle=bundle.sample_of(index)), rollout)
            else:
                work.take(number, joined(bundle.so_far, rollout))

    def _go_on(self, piece: _Piece, handed_over: Rollout) -> None:
        """Let a piece of one sample wait again, with what an engine has handed over of it, or end its work
        where that would have no end. No engine is to blame."""
        goes_on, has_tokens = self._source.goes_on(piece.bundle), bool(handed_over.completion_ids)
        if goes_on and has_tokens:
            so_far = joined(piece.bundle.so_far, handed_over)
            self.num_handed_over += 1
            if piece.work.on_finished is not None:
                piece.work.on_finished(piece.first, so_far)
            self._wait(replace(piece, bundle=replace(piece.bundle, so_far=so_far), failures=(), num_empty=0))
            return
        if not goes_on:
            self.num_resent += 1
        num_empty = piece.num_empty + (has_tokens or self._is_first(piece))
        if num_empty < MOST_EMPTY_IN_A_ROW:
            self._wait(replace(piece, num_empty=num_empty))
        elif goes_on or piece.bundle.own_parameters is None:
            piece.work.end(EngineError(f"a request failed: {_NEVER_BEGUN}"))
        else:
            piece.work.end(
                RequestRefusedError(f"a call that is not trained: {_NEVER_WHOLE}", said=_NEVER_WHOLE)
            )

    def _is_first(self, piece: _Piece) -> bool:
        """Whether it is the first in turn of all that is not finished."""
        others = [*self._waiting[:1], *(running for running, _, _ in self._running.values())]
        return all(piece.turn <= other.turn for other in others)

    def _send_again(self, piece: _Piece, key: str, error: BaseException) -> None:
        work = piece.work
        if isinstance(error, EngineRefusedError) and error.status == 400:
            what = "an engine refuses a prompt, shorten it or raise engine.maxModelLen"
            work.end(RequestRefusedError(f"{what}: {error}", said=str(error)))
            return
        if isinstance(error, Exception):
            self._source.mark_unhealthy(key, error)
            piece = replace(piece, failures=(*piece.failures, str(error)))
        if len(piece.failures) >= MAX_ENGINES_PER_REQUEST:
            answers = "; ".join(dict.fromkeys(piece.failures))
            work.end(EngineError(f"a request failed {MAX_ENGINES_PER_REQUEST} times: {answers}"))
            return
        self.num_resent += piece.bundle.num_samples
        self._wait(piece)

    def _cancel_lost(self) -> None:
        """Take back what engines that are lost were given, once they have handed over what they can."""
        lost: dict[str, list[asyncio.Task[list[Rollout]]]] = {}
        for task, (piece, key, _) in self._running.items():
            if task.done() or not self._source.is_lost(key):
                continue
            if self._source.goes_on(piece.bundle):
                lost.setdefault(key, []).append(task)
            else:
                task.cancel()
        for key in [key for key in self._handing_over if key not in lost and self._handing_over[key].done()]:
            self._handing_over.pop(key).result()
        for key, tasks in lost.items():
            if key not in self._handing_over:
                self._handing_over[key] = asyncio.ensure_future(self._source.hand_over(key))
                self._handing_over[key].add_done_callback(lambda _: self._wake.set())
            elif self._handing_over[key].done():
                self._handing_over.pop(key).result()
                for task in tasks:
                    task.cancel()


def _turn(piece: _Piece) -> tuple[bool, int]:
    return piece.turn
