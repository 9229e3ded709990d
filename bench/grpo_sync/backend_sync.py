"""The weight sync by one of our backends to receivers without vLLM."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from grpo_api.contract.versions import PolicyVersion
from grpo_bench.errors import BenchError
from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.interface import Backend, Failures, Peer, SenderSettings, WeightSender
from grpo_runtime.weight_sync.source import WeightSource
from grpo_sync.amounts import Amounts
from grpo_sync.broadcast import HOST
from grpo_sync.model_memory import digest_of_ends
from grpo_sync.receivers import RemoteReceiver

_TIMEOUT_SECONDS = 120.0
_STEPS = itertools.count(1)
"""Of all syncs that are measured, as of one run."""


@asynccontextmanager
async def connected(
    backend: Backend[Any],
    weights: WeightSource,
    receivers: Sequence[RemoteReceiver],
    *,
    device: str = "cpu",
) -> AsyncIterator["BackendSync"]:
    """A sender, and receivers of the same backend whose models are on the device; the first sync connects
    them."""
    layout = {spec.name: list(spec.shape) for spec in weights.layout()}
    await asyncio.gather(
        *(receiver.call("make", backend=backend.name, layout=layout, device=device) for receiver in receivers)
    )
    names = {f"receiver-{index}": receiver for index, receiver in enumerate(receivers)}
    peers = {name: Peer(receiver, host=HOST) for name, receiver in names.items()}
    sender = backend.make_sender(peers, SenderSettings(Deadlines(_TIMEOUT_SECONDS)))
    try:
        yield BackendSync(backend, weights, sender, names)
    finally:
        await sender.shutdown()
    await asyncio.gather(*(receiver.shutdown() for receiver in receivers))


class BackendSync:
    """Syncs the same receivers again and again with one sender, as a fleet does."""

    def __init__(
        self,
        backend: Backend[Any],
        weights: WeightSource,
        sender: WeightSender[Any],
        receivers: Mapping[str, RemoteReceiver],
    ) -> None:
        self._backend = backend
        self._weights = weights
        self._sender = sender
        self._receivers = receivers
        self._is_connected = False
        self._prepared: Any = None
        """The last weights: a fleet keeps them for engines that join, until there are new ones."""

    async def run(self) -> Amounts:
        """Seconds of each phase, with `load` apart from `finish` and not in `total`."""
        names, sender, seconds = tuple(self._receivers), self._sender, _Stopwatch()
        self._prepared = None  # as a fleet lets go of the weights before
        self._prepared = await asyncio.to_thread(self._backend.prepare, self._weights)
        if self._backend.name_version is not None:
            self._backend.name_version(self._prepared, PolicyVersion(1, next(_STEPS)))
        seconds.lap("prepare")
        if not self._is_connected:
            _check("init", await sender.init(names))
            self._is_connected = True
        seconds.lap("init")
        _check("start", await sender.start(names))
        seconds.lap("start")
        _check("transfer", await sender.update(self._prepared, engines=names))
        seconds.lap("transfer")
        _check("finish", await sender.finish("1", engines=names))
        seconds.lap("finish")
        load = max(receiver.load_seconds for receiver in self._receivers.values())
        laps = seconds.laps
        laps["finish"] -= load
        return {**laps, "load": load, "total": sum(laps.values())}

    async def check(self) -> None:
        """Raises BenchError when a receiver has loaded anything but the weights."""
        wanted = digest_of_ends(self._weights.tensors())
        for name, receiver in self._receivers.items():
            if (await receiver.call("ends"))["ends"] != wanted:
                raise BenchError(f"{name} has loaded other weights than those sent by {self._backend.name}")


class _Stopwatch:
    """The time of each part of a whole."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, part: str) -> None:
        """End a part; the next one begins."""
        now = time.monotonic()
        self.laps[part], self._last = now - self._last, now


def _check(phase: str, failures: Failures) -> None:
    for name, error in failures.items():
        raise BenchError(f"{phase}: {name}: {error}") from error
