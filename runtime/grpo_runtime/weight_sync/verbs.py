"""The verbs that only go over control channels: what one does at several engines, each with a deadline."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

from grpo_runtime.weight_sync.deadlines import Deadlines, not_done_within
from grpo_runtime.weight_sync.interface import ControlChannel, Failures, WeightSyncError


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

    outcomes = await asyncio.gather(*map(within_deadline, work.values()), return_exceptions=True)
    failures: dict[str, Exception] = {}
    for name, outcome in zip(work, outcomes, strict=True):
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
