"""The table of backends. A new one is a module with its two ends and a row here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from grpo_runtime.weight_sync.gloo import GlooReceiver, GlooSender
from grpo_runtime.weight_sync.in_process import InProcessReceiver, InProcessSender, LentWeights, lend
from grpo_runtime.weight_sync.interface import ControlChannel, Receiver, WeightSender, WeightSource
from grpo_runtime.weight_sync.packing import PackedWeights, pack
from grpo_runtime.weight_sync.receiver import StagingReceiver

W = TypeVar("W")


class Reach(StrEnum):
    """How far apart the two ends may be."""

    NETWORK = "network"
    NODE = "node"
    PROCESS = "process"


@dataclass(frozen=True)
class SenderSettings:
    """What a sender is told about its receiver. `peer_host` is where the engine's API is reached."""

    peer_host: str
    timeout_seconds: float


@dataclass(frozen=True)
class Backend(Generic[W]):
    """One way for weights to travel. `name` is also the one it has in vLLM's weight transfer config.

    `prepare` makes of the weights what `make_sender`'s senders take, once for all of them. `make_receiver` is
    given the shapes of the model's tensors, and the names that may be left out.
    """

    name: str
    reach: Reach
    prepare: Callable[[WeightSource], W]
    make_sender: Callable[[ControlChannel, SenderSettings], WeightSender[W]]
    make_receiver: Callable[[Mapping[str, tuple[int, ...]], frozenset[str]], Receiver]


def _gloo_sender(channel: ControlChannel, settings: SenderSettings) -> GlooSender:
    return GlooSender(channel, peer_host=settings.peer_host, timeout_seconds=settings.timeout_seconds)


def _gloo_receiver(shapes: Mapping[str, tuple[int, ...]], optional: frozenset[str]) -> StagingReceiver:
    return StagingReceiver(GlooReceiver(), shapes=shapes, optional=optional)


GLOO = Backend[PackedWeights](
    name="gloo",
    reach=Reach.NETWORK,
    prepare=lambda source: pack(source()),
    make_sender=_gloo_sender,
    make_receiver=_gloo_receiver,
)
IN_PROCESS = Backend[LentWeights](
    name="in_process",
    reach=Reach.PROCESS,
    prepare=lend,
    make_sender=lambda channel, settings: InProcessSender(channel),
    make_receiver=InProcessReceiver,
)

BACKENDS: dict[str, Backend[Any]] = {backend.name: backend for backend in (GLOO, IN_PROCESS)}
"""Every backend there is, by name."""
