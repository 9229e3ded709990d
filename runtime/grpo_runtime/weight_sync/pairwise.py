"""Senders to several engines: what one verb does at each of them, and a sender with a connection for each."""

import asyncio
import time
from collections.abc import Awaitable, Collection, Mapping
from typing import Generic, Protocol, TypeVar

from grpo_runtime.weight_sync.deadlines import PhaseDeadlines
from grpo_runtime.weight_sync.interface import ControlChannel, Failures, PreparedWeights, WeightSyncError

W = TypeVar("W", bound=PreparedWeights)
W_contra = TypeVar("W_contra", bound=PreparedWeights, contravariant=True)


class Connection(Protocol[W_contra]):
    """The trainer's end of a connection to one engine. The verbs are those of a WeightSender; they raise."""

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

    def __init__(self, connections: Mapping[str, Connection[W]], *, timeout_seconds: float) -> None:
        self._connections = connections
        self._verbs = Verbs({name: found.channel for name, found in connections.items()}, timeout_seconds)
        self._timeout_seconds = timeout_seconds

    async def init(self, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        return await self._all({name: self._connections[name].init() for name in engines})

    async def start(self, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        return await self._verbs.start(engines)

    async def update(self, weights: W, *, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        return await self._all({name: self._connections[name].update(weights) for name in engines})

    async def finish(self, version: str, *, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        return await self._verbs.finish({name: self._connections[name].finish(version) for name in engines})

    async def abort(self, engines: Collection[str]) -> Failures:
        """See `WeightSender`."""
        return await self._verbs.abort(engines)

    async def shutdown(self) -> None:
        """See `WeightSender`."""
        for connection in self._connections.values():
            await connection.shutdown()

    async def _all(self, work: Mapping[str, Awaitable[None]]) -> Failures:
        return await for_each_engine(work, timeout_seconds=self._timeout_seconds)


class Verbs:
    """The verbs that only go over the control channels, with a deadline for each."""

    def __init__(self, channels: Mapping[str, ControlChannel], timeout_seconds: float) -> None:
        self._channels = channels
        self._deadlines = PhaseDeadlines(timeout_seconds)
        self._timeout_seconds = timeout_seconds

    async def start(self, engines: Collection[str]) -> Failures:
        """Open an update, ending one that an earlier trainer left open."""
        work = {name: _open_update(self._channels[name]) for name in engines}
        return await for_each_engine(work, timeout_seconds=self._deadlines.of("start"))

    async def finish(self, work: Mapping[str, Awaitable[None]]) -> Failures:
        """Let the engines apply what was delivered, each by its call in `work`."""
        start = time.monotonic()
        failures = await for_each_engine(work, timeout_seconds=self._deadlines.of("finish"))
        if work and not failures:
            self._deadlines.note("finish", time.monotonic() - start)
        return failures

    async def abort(self, engines: Collection[str]) -> Failures:
        """End an open update. The engine answers every abort with an error, which is what ends it."""
        work = {name: _give_up_update(self._channels[name]) for name in engines}
        return await for_each_engine(work, timeout_seconds=self._timeout_seconds)


async def for_each_engine(work: Mapping[str, Awaitable[None]], *, timeout_seconds: float) -> Failures:
    """Do the work of every engine at the same time; one that is not done within the deadline has failed."""

    async def within_deadline(one: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                await one
        except TimeoutError as error:
            raise WeightSyncError(f"not done within {timeout_seconds:g} s") from error

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
