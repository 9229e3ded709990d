"""The table of backends. A new one is a module with its two ends and a row here."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from grpo_runtime.weight_sync.gloo import GlooReceiver, GlooSender
from grpo_runtime.weight_sync.interface import ControlChannel, ReceiverTransport, WeightSender


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
class Backend:
    """One way for weights to travel. `name` is also the one it has in vLLM's weight transfer config."""

    name: str
    reach: Reach
    make_sender: Callable[[ControlChannel, SenderSettings], WeightSender]
    make_transport: Callable[[], ReceiverTransport]


def _gloo_sender(channel: ControlChannel, settings: SenderSettings) -> WeightSender:
    return GlooSender(channel, peer_host=settings.peer_host, timeout_seconds=settings.timeout_seconds)


BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend(name="gloo", reach=Reach.NETWORK, make_sender=_gloo_sender, make_transport=GlooReceiver),
    )
}
"""Every backend there is, by name."""
