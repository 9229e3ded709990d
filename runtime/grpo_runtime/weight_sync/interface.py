"""What a backend must bring: a sender in the trainer and a receiving transport in the engine.

A transfer goes

    init -> start -> update -> finish(version) -> ... start -> update -> finish(version) ... -> shutdown

and only `finish` changes the weights that are served. `update` moves all bytes and checks them against the
manifest; when it fails, or `abort` is called instead of `finish`, the old weights stay and the next `start`
is welcome. A new sender may `init` a receiver at any time: it replaces the connection of the one before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import torch

from grpo_runtime.weight_sync.packing import Manifest

Info = Mapping[str, Any]
"""What a verb carries to the receiver: JSON values only."""

WeightSource = Callable[[], Iterable[tuple[str, torch.Tensor]]]
"""Gives all weights, each whole and under its Hugging Face name, as often as it is asked."""

W_contra = TypeVar("W_contra", contravariant=True)


class WeightSyncError(Exception):
    """A transfer failed. The receiver still has its old weights and takes another transfer."""


class ControlChannel(Protocol):
    """How the verbs reach one receiver. Each call returns when the receiver has done it, or raises.

    Group transports give one channel per member; a channel within one process calls the receiver directly.
    """

    async def init(self, info: Info) -> None: ...

    async def start(self) -> None: ...

    async def update(self, info: Info) -> None: ...

    async def finish(self, version: str) -> None: ...

    async def shutdown(self) -> None: ...


class WeightSender(Protocol[W_contra]):
    """The trainer's end. Every method raises WeightSyncError within the deadline it was made with.

    It takes what its backend prepares of a WeightSource: a packed copy, or something that reads it later.
    After an error the connection may be unusable: `shutdown` and make a new sender.
    """

    async def init(self) -> None:
        """Connect to the receiver."""
        ...

    async def start(self) -> None:
        """Open an update. The engine must be paused."""
        ...

    async def update(self, weights: W_contra) -> None:
        """Deliver all weights and wait until the receiver has checked them. Nothing is applied yet."""
        ...

    async def finish(self, version: str) -> None:
        """Apply what was delivered, under this version."""
        ...

    async def abort(self) -> None:
        """End an update that somebody left open; the old weights stay. Harmless when none is open."""
        ...

    async def shutdown(self) -> None:
        """Let go of every connection and thread; the engine is not told."""
        ...


class Receiver(Protocol):
    """The engine's end. Weights leave it only through `take`, whole and checked."""

    def init(self, info: Info) -> None:
        """Connect to a new sender; what an earlier one had delivered is dropped."""
        ...

    def start(self) -> None:
        """Open an update."""
        ...

    def update(self, info: Info) -> None:
        """Receive and check a whole update, or give it up.

        Raises WeightSyncError when anything is wrong with it, and always for an abort: an update that was
        given up must not be finished.
        """
        ...

    def take(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights of a complete, checked update; they can be taken once.

        Raises WeightSyncError when there is none.
        """
        ...

    def shutdown(self) -> None:
        """Let go of the connection and of what was delivered."""
        ...


class ReceiverTransport(Protocol):
    """The end of a connection that carries bytes, for a receiver that stages them. Blocking.

    It knows neither names nor versions.
    """

    def init(self, info: Info) -> None:
        """Connect to the sender that wrote `info`, letting go of any other."""
        ...

    def receive(self, flat: torch.Tensor, *, manifest: Manifest, digest: "Digest") -> None:
        """Fill `flat` (uint8 [num_bytes], CPU) in order, feeding each part to `digest` once it is there.

        Raises WeightSyncError when the sender is gone or its deadline passes.
        """
        ...

    def shutdown(self) -> None:
        """Let go of the connection. Harmless when there is none."""
        ...


class Digest(Protocol):
    """The part of hashlib's objects that a transport uses."""

    def update(self, data: memoryview, /) -> None: ...
