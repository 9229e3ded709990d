"""A sender to several engines with a connection for each of them."""

from collections.abc import Awaitable, Collection, Mapping
from typing import Generic, Protocol, TypeVar

from grpo_runtime.weight_sync.interface import ControlChannel, Failures, PreparedWeights, SenderSettings
from grpo_runtime.weight_sync.verbs import Verbs, for_each_engine

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

    def __init__(self, connections: Mapping[str, Connection[W]], settings: SenderSettings) -> None:
        self._connections = connections
        self._verbs = Verbs({name: found.channel for name, found in connections.items()}, settings.deadlines)
        self._timeout_seconds = settings.timeout_seconds

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
