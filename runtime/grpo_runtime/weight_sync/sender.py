"""What senders share: the verbs at several engines, each with a deadline.

`PairwiseSender` has a connection to each engine. `act_together` is one act of engines that share a group with
the trainer, and finds who broke it.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from grpo_runtime.weight_sync.deadlines import ANSWER_SECONDS, Deadlines, not_done_within
from grpo_runtime.weight_sync.interface import (
    ControlChannel,
    Failures,
    GroupBrokenError,
    OverLimitError,
    PreparedWeights,
    SenderSettings,
    TooSlowError,
    WeightSyncError,
)

W = TypeVar("W", bound=PreparedWeights)
W_contra = TypeVar("W_contra", bound=PreparedWeights, contravariant=True)


class Connection(Protocol[W_contra]):
    """The trainer's side of a connection to one engine. The verbs are those of a WeightSender; they raise."""

    @property
    def channel(self) -> ControlChannel:
        """How the verbs reach the engine."""
        ...

    async def init(self) -> None: ...

    async def update(self, weights: W_contra) -> None: ...

    async def finish(self, version: str) -> None: ...

    async def shutdown(self) -> None: ...


class PairwiseSender(Generic[W]):
    """A WeightSender whose engines have a connection each: a dead or slow one delays no other."""

    def __init__(self, connections: Mapping[str, Connection[W]], settings: SenderSettings) -> None:
        self._connections = connections
        self._verbs = Verbs({name: found.channel for name, found in connections.items()}, settings.deadlines)
        self._timeout_seconds = settings.timeout_seconds

    async def init(self, engines: Collection[str]) -> Failures:
        """Connect to the receivers."""
        return await self._all({name: self._connections[name].init() for name in engines})

    async def start(self, engines: Collection[str]) -> Failures:
        """Open an update, ending one that an earlier trainer left open."""
        return await self._verbs.start(engines)

    async def update(self, weights: W, *, engines: Collection[str], ends_at: float | None = None) -> Failures:
        """Deliver all weights and wait until the receivers have checked them."""
        work = {name: self._connections[name].update(weights) for name in engines}
        limit = self._timeout_seconds if ends_at is None else ends_at - time.monotonic()
        return await for_each_engine(work, timeout_seconds=limit)

    async def finish(self, version: str, *, engines: Collection[str]) -> Failures:
        """Apply what was delivered, under this version."""
        return await self._verbs.finish({name: self._connections[name].finish(version) for name in engines})

    async def abort(self, engines: Collection[str]) -> Failures:
        """End an update instead of finishing it; the old weights stay."""
        return await self._verbs.abort(engines)

    async def shutdown(self) -> None:
        """Let go of every connection and thread; the engines are not called."""
        for connection in self._connections.values():
            await connection.shutdown()

    async def _all(self, work: Mapping[str, Awaitable[None]]) -> Failures:
        return await for_each_engine(work, timeout_seconds=self._timeout_seconds)


class Verbs:
    """The verbs besides `init` and `update`, with the engines' `channels`."""

    def __init__(self, channels: Mapping[str, ControlChannel], deadlines: Deadlines) -> None:
        self._channels = channels
        self._deadlines = deadlines

    async def start(self, engines: Collection[str]) -> Failures:
        """Open an update, ending one that an earlier trainer left open."""
        work = {name: _open_update(self._channels[name]) for name in engines}
        return await for_each_engine(work, timeout_seconds=self._deadlines.of("start"))

    async def finish(self, work: Mapping[str, Awaitable[None]]) -> Failures:
        """Let the engines apply what was delivered, each by its call in `work`."""
        start = time.monotonic()
        failures = await for_each_engine(
            work, timeout_seconds=self._deadlines.of("finish"), lag_seconds=self._deadlines.lag_seconds
        )
        if work and not failures:
            self._deadlines.note("finish", time.monotonic() - start)
        return failures

    async def abort(self, engines: Collection[str]) -> Failures:
        """End an open update. The engine answers every abort with an error, which is what ends it."""
        work = {name: _give_up_update(self._channels[name]) for name in engines}
        return await for_each_engine(work, timeout_seconds=self._deadlines.timeout_seconds)


async def for_each_engine(
    work: Mapping[str, Awaitable[None]],
    *,
    timeout_seconds: float,
    lag_seconds: Callable[[float], float] = lambda took: math.inf,
) -> Failures:
    """Do the work of every engine at the same time; one that is not done within the deadline has failed.

    When the first engine has done it, after `took` seconds, the others have `lag_seconds(took)` more, if that
    is sooner.
    """
    now = asyncio.get_running_loop().time
    start, ends_at = now(), now() + timeout_seconds
    is_first_done = False
    waiting: set[asyncio.Timeout] = set()

    def done() -> None:
        nonlocal is_first_done, ends_at
        if is_first_done:
            return
        is_first_done = True
        ends_at = min(ends_at, now() + lag_seconds(now() - start))
        for deadline in waiting:
            deadline.reschedule(ends_at)

    async def within_deadline(one: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout_at(ends_at) as deadline:
                waiting.add(deadline)
                try:
                    await one
                finally:
                    waiting.discard(deadline)
        except TimeoutError as error:
            raise WeightSyncError(not_done_within(ends_at - start)) from error
        done()

    return failures_of(
        work, await asyncio.gather(*map(within_deadline, work.values()), return_exceptions=True)
    )


def failures_of(engines: Iterable[str], outcomes: Iterable[BaseException | None]) -> Failures:
    """What was raised for engines, by their names. Raises what is no failure of an engine, such as a
    cancellation."""
    failures: dict[str, Exception] = {}
    for name, outcome in zip(engines, outcomes, strict=True):
        if isinstance(outcome, Exception):
            failures[name] = outcome
        elif outcome is not None:
            raise outcome
    return failures


async def _open_update(channel: ControlChannel) -> None:
    try:
        await channel.start()
    except WeightSyncError:
        await _give_up_update(channel)
        await channel.start()


async def _give_up_update(channel: ControlChannel) -> None:
    try:
        await channel.update({"abort": "the sender asked for it"})
    except WeightSyncError:
        return


async def act_together(
    calls: Mapping[str, Awaitable[None]], own_part: asyncio.Future[Any], *, stall_seconds: float
) -> dict[str, Exception]:
    """The errors of the engines.

    The trainer's part ends by itself, at the latest `stall_seconds` after its last progress. All others
    have been blocked as long by then, so that they answer in a moment; where it ends sooner, as with a lost
    connection, or an engine refuses, they have the rest of that time too. Raises what the trainer's part
    raised, unless an engine broke it. When that is an OverLimitError, the others have just had something,
    and are blocked from then on; who gives no answer then is a TooSlowError. An engine that is alone is not
    waited for.
    """
    start = time.monotonic()
    answers = {name: asyncio.ensure_future(call) for name, call in calls.items()}
    own_part.add_done_callback(read_outcome)
    try:
        waiting: set[asyncio.Future[Any]] = {own_part, *answers.values()}
        while waiting and not own_part.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(one.exception() for one in done):
                break
        if _failed_by_itself(own_part):
            own_part.result()
        is_over_limit = own_part.done() and isinstance(own_part.exception(), OverLimitError)
        has_stalled = own_part.done() and own_part.exception() is not None
        # a lost connection is found at once, and those behind it are blocked for as long as they may
        stalled_for = time.monotonic() - start if has_stalled and not is_over_limit else 0.0
        patience = max(0.0, stall_seconds - stalled_for) + ANSWER_SECONDS
        if not is_over_limit or len(calls) > 1:
            await asyncio.wait(answers.values(), timeout=patience)
    finally:
        for answer in answers.values():
            answer.cancel()
        outcomes = await asyncio.gather(*answers.values(), return_exceptions=True)
    if _failed_by_itself(own_part):
        own_part.result()
    errors: dict[str, Exception] = {}
    for name, outcome in zip(answers, outcomes, strict=True):
        if isinstance(outcome, asyncio.CancelledError):
            kind = TooSlowError if is_over_limit else WeightSyncError
            errors[name] = kind(f"no answer within {stall_seconds:g} s")
        elif isinstance(outcome, Exception):
            errors[name] = outcome
        elif isinstance(outcome, BaseException):
            raise outcome
    return errors


def blamed_for(errors: Failures, *, num_engines: int) -> Failures:
    """Failures of the engines that broke the group themselves: they refused, gave no answer, or were alone in
    it with the trainer."""
    if num_engines == 1:
        return errors
    return {name: error for name, error in errors.items() if not isinstance(error, GroupBrokenError)}


def read_outcome(future: asyncio.Future[Any]) -> None:
    """Read what became of work that is no longer waited for: asyncio reports errors that are never read."""
    if not future.cancelled():
        future.exception()


def _failed_by_itself(own_part: asyncio.Future[Any]) -> bool:
    """Whether the trainer's part has failed, and not because of an engine."""
    error = own_part.exception() if own_part.done() else None
    return error is not None and not isinstance(error, GroupBrokenError)
