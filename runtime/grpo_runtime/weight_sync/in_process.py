"""Weights to an engine in the same process: the sender lends them, the receiver reads them in finish.

Nothing is packed or staged: a full copy beside policy and engine is what a shared GPU has no room for. The
engine takes one parameter after the other from the policy, which must not change before finish is over.
"""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_runtime.weight_sync.interface import ControlChannel, Info, WeightSource, WeightSyncError
from grpo_runtime.weight_sync.receiver import layout_problems

_LENT: dict[str, WeightSource] = {}
"""Where the two ends of this process meet: the verbs carry JSON only, so they carry the key."""


@dataclass(frozen=True)
class LentWeights:
    """Weights that stay where they are. `source` is read once more by the engine, in finish."""

    source: WeightSource
    shapes: Mapping[str, tuple[int, ...]]
    num_bytes: int


def lend(source: WeightSource) -> LentWeights:
    """Look at what `source` gives, one tensor at a time. Raises ValueError for a name that comes twice."""
    shapes: dict[str, tuple[int, ...]] = {}
    num_bytes = 0
    for name, tensor in source():
        if name in shapes:
            raise ValueError(f"{name} is there twice")
        shapes[name] = tuple(tensor.shape)
        num_bytes += tensor.nbytes
    return LentWeights(source, shapes, num_bytes)


class _Update(BaseModel):
    """What the verb `update` carries: the key of what is lent and its layout, or `abort`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = ""
    shapes: dict[str, tuple[int, ...]] = {}
    abort: Annotated[str, Field(max_length=1024)] = ""


class InProcessSender:
    """Lends to one engine. There is nobody to wait for, so there is no deadline to keep."""

    def __init__(self, channel: ControlChannel) -> None:
        self._channel = channel
        self._key = secrets.token_urlsafe(8)

    async def init(self) -> None:
        """Tell the receiver that it has a new sender."""
        await self._channel.init({})

    async def start(self) -> None:
        """Open an update."""
        await self._channel.start()

    async def update(self, weights: LentWeights) -> None:
        """Let the receiver see what it will get; nothing is copied."""
        _LENT[self._key] = weights.source
        shapes = {name: list(shape) for name, shape in weights.shapes.items()}
        await self._channel.update({"key": self._key, "shapes": shapes})

    async def finish(self, version: str) -> None:
        """Let the engine read the weights, under this version."""
        try:
            await self._channel.finish(version)
        finally:
            _LENT.pop(self._key, None)

    async def abort(self) -> None:
        """End an open update. The receiver answers every abort with an error, which is what ends it."""
        _LENT.pop(self._key, None)
        try:
            await self._channel.update({"abort": "the sender asked for it"})
        except WeightSyncError:
            return

    async def shutdown(self) -> None:
        """Take back what is lent."""
        _LENT.pop(self._key, None)


class InProcessReceiver:
    """The engine's end; see `Receiver`."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], optional: frozenset[str]) -> None:
        self._shapes = shapes
        self._optional = optional
        self._key: str | None = None

    def init(self, info: Info) -> None:
        """Forget what an earlier sender offered."""
        self._key = None

    def start(self) -> None:
        """Open an update."""
        self._key = None

    def update(self, info: Info) -> None:
        """Check the layout of what is lent, or give the update up."""
        self._key = None
        try:
            update = _Update.model_validate(dict(info))
        except ValidationError as error:
            raise WeightSyncError(f"weight update not understood: {error}") from error
        if update.abort:
            raise WeightSyncError(f"weight update given up: {update.abort}")
        if problems := layout_problems(update.shapes, wanted=self._shapes, optional=self._optional):
            raise WeightSyncError(f"weight update refused: {'; '.join(problems[:5])}")
        if update.key not in _LENT:
            raise WeightSyncError("weight update refused: its sender is in another process")
        self._key = update.key

    def take(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The sender's own tensors, one at a time."""
        key, self._key = self._key, None
        source = None if key is None else _LENT.pop(key, None)
        if source is None:
            raise WeightSyncError("there is nothing to finish: no complete weight update was received")
        return iter(source())

    def shutdown(self) -> None:
        """Forget what was offered."""
        self._key = None
