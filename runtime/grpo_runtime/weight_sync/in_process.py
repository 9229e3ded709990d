"""Weights to an engine in the same process: the sender passes its source by reference, and the engine reads
it in `finish`.

Nothing is packed or staged: a shared GPU has no room for a full copy beside policy and engine. The engine
takes one parameter after the other from the policy, which must not change before `finish` is over.
"""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_runtime.weight_sync.interface import (
    Backend,
    Info,
    Peer,
    Reach,
    ReceiverSettings,
    SenderSettings,
    WeightSyncError,
)
from grpo_runtime.weight_sync.sender import PairwiseSender
from grpo_runtime.weight_sync.source import WeightSource, read_tensors, require_distinct_names

_SHARED: dict[str, WeightSource] = {}
"""Sources by key, shared by sender and receiver in this process: the verbs carry JSON only, so they carry the
key."""


@dataclass(frozen=True)
class SharedWeights:
    """Weights that stay where they are: `source` is read by the engine, in `finish`."""

    source: WeightSource

    @property
    def num_bytes(self) -> int:
        """Bytes that the engine reads."""
        return sum(spec.num_bytes for spec in self.source.layout())

    @property
    def num_bytes_sent(self) -> int:
        """Nothing leaves the process."""
        return 0

    def wait_until_read(self) -> float:
        """Nothing is copied, so there is nothing to wait for: the engine reads in `finish`."""
        return 0.0


def share(source: WeightSource) -> SharedWeights:
    """Look at the layout of `source`. Raises ValueError for a name that comes twice."""
    require_distinct_names(source.layout())
    return SharedWeights(source)


class _Update(BaseModel):
    """What the verb `update` carries: the key of the shared source and its shapes, or `abort`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = ""
    shapes: dict[str, tuple[int, ...]] = {}
    abort: Annotated[str, Field(max_length=1024)] = ""


class InProcessConnection:
    """Shares its source with one engine; see `Connection`."""

    def __init__(self, peer: Peer) -> None:
        self.channel = peer.channel
        self._key = secrets.token_urlsafe(8)

    async def init(self) -> None:
        """Tell the receiver that it has a new sender."""
        await self.channel.init({})

    async def update(self, weights: SharedWeights) -> None:
        """Let the receiver see what it will get; nothing is copied."""
        _SHARED[self._key] = weights.source
        shapes = {spec.name: list(spec.shape) for spec in weights.source.layout()}
        try:
            await self.channel.update({"key": self._key, "shapes": shapes})
        except WeightSyncError:
            _SHARED.pop(self._key, None)
            raise

    async def finish(self, version: str) -> None:
        """Let the engine read the weights, under this version."""
        try:
            await self.channel.finish(version)
        finally:
            _SHARED.pop(self._key, None)

    async def shutdown(self) -> None:
        """Withdraw the shared source."""
        _SHARED.pop(self._key, None)


class InProcessReceiver:
    """The engine's side; see `Receiver`."""

    def __init__(self, settings: ReceiverSettings) -> None:
        self._settings = settings
        self._key: str | None = None

    def init(self, info: Info) -> None:
        """Forget what an earlier sender offered."""
        self._key = None

    def start(self) -> None:
        """Open an update."""
        self._key = None

    def update(self, info: Info) -> None:
        """Check the shapes of the shared source, or abort the update."""
        self._key = None
        try:
            update = _Update.model_validate(dict(info))
        except ValidationError as error:
            raise WeightSyncError(f"weight update not understood: {error}") from error
        if update.abort:
            raise WeightSyncError(f"weight update aborted: {update.abort}")
        if problems := self._settings.layout_problems(update.shapes):
            raise WeightSyncError(f"weight update refused: {'; '.join(problems[:5])}")
        if update.key not in _SHARED:
            raise WeightSyncError("weight update refused: its sender is in another process")
        self._key = update.key

    def take(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The sender's own tensors, one at a time, cast where they have another dtype than the layout."""
        key, self._key = self._key, None
        source = None if key is None else _SHARED.pop(key, None)
        if source is None:
            raise WeightSyncError("there is nothing to finish: no complete weight update was received")
        return ((spec.name, tensor.detach().to(spec.dtype)) for spec, tensor in read_tensors(source))

    def shutdown(self) -> None:
        """Forget what was offered."""
        self._key = None


def in_process_backend(name: str) -> Backend[SharedWeights]:
    """Engines in the trainer's own process."""

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> PairwiseSender[SharedWeights]:
        connections = {engine: InProcessConnection(peer) for engine, peer in engines.items()}
        return PairwiseSender(connections, settings)

    return Backend[SharedWeights](
        name=name,
        reach=Reach.PROCESS,
        prepare=share,
        make_sender=make_sender,
        make_receiver=InProcessReceiver,
    )
