"""One rank's engine, or its share of one, in the order that memory asks for.

    wake the weights -> load -> wake the KV cache -> forget cached prefixes -> verify -> generate -> sleep

Trainer and engine share one device: the cache must not be there while the weights come, and neither of both
while the trainer computes.
"""

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollout.interface import GenerateRequest, Probe
from grpo_runtime.weight_sync.interface import ControlChannel, WeightSource
from grpo_runtime.weight_sync.registry import IN_PROCESS, SenderSettings

PHASES = ("wake_weights", "transfer", "finish", "wake_kv_cache", "verify")
"""Of a sync, in order."""


@dataclass(frozen=True)
class Completion:
    """The tokens sampled for one request, and the sampler's logprobs of them, in nats."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_terminated: bool


@dataclass(frozen=True)
class LocalSync:
    """What one sync did on one rank. `phase_seconds` are those of PHASES; without a probe the error is 0."""

    phase_seconds: tuple[float, ...]
    num_bytes: int
    probe_error: float


class LocalEngine(Protocol):
    """An engine in this process. Everything blocks."""

    @property
    def channel(self) -> ControlChannel:
        """The verbs of weight transfer, as calls."""
        ...

    def weight_version(self) -> str:
        """What the last finished update was called."""
        ...

    def sleep(self, level: int) -> None:
        """Give memory back: the KV cache, and the weights to the CPU (level 1) or for good (level 2)."""
        ...

    def wake_up(self, tag: str) -> None:
        """Take memory again, for `weights` or for `kv_cache`."""
        ...

    def reset_prefix_cache(self) -> None:
        """Forget what older weights computed."""
        ...

    def sample(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """One completion for each request, in their order."""
        ...

    def probe_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs (nats, temperature 1) of all tokens after the first."""
        ...


class InProcessEngine:
    """Keeps one LocalEngine's weights new and lets it sleep while nobody needs it."""

    def __init__(self, engine: LocalEngine, *, sleep_level: int, timeout_seconds: float) -> None:
        """`sleep_level` 0 leaves the engine awake all the time."""
        self._engine = engine
        self._sleep_level = sleep_level
        self._is_asleep = False
        settings = SenderSettings(peer_host="localhost", timeout_seconds=timeout_seconds)
        self._sender = IN_PROCESS.make_sender(engine.channel, settings)
        self._is_connected = False

    def sync(self, weights: WeightSource, *, version: PolicyVersion, probe: Probe | None) -> LocalSync:
        """Give the engine the weights. Whether the probe's error is small enough is for the caller to say."""
        clock = _Clock()
        with clock.phase("wake_weights"):
            self._wake_up("weights")
        num_bytes = asyncio.run(self._load(weights, version=version, clock=clock))
        with clock.phase("wake_kv_cache"):
            self._wake_up("kv_cache")
            self._is_asleep = False
            self._engine.reset_prefix_cache()
        with clock.phase("verify"):
            error = 0.0 if probe is None else largest_error(self._engine, probe)
        return LocalSync(
            phase_seconds=tuple(clock.seconds[phase] for phase in PHASES),
            num_bytes=num_bytes,
            probe_error=error,
        )

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Sample all requests; then the engine sleeps, for what follows is training."""
        completions = self._engine.sample(requests) if requests else []
        if self._sleep_level > 0:
            self._engine.sleep(self._sleep_level)
            self._is_asleep = True
        return completions

    def weight_version(self) -> PolicyVersion:
        """Of the weights that the engine has, as it says itself."""
        return PolicyVersion.parse(self._engine.weight_version())

    def _wake_up(self, tag: str) -> None:
        if self._is_asleep:
            self._engine.wake_up(tag)

    async def _load(self, weights: WeightSource, *, version: PolicyVersion, clock: "_Clock") -> int:
        with clock.phase("transfer"):
            lent = IN_PROCESS.prepare(weights)
            if not self._is_connected:
                await self._sender.init()
                self._is_connected = True
            await self._sender.start()
            await self._sender.update(lent)
        with clock.phase("finish"):
            await self._sender.finish(str(version))
        return lent.num_bytes


def largest_error(engine: LocalEngine, probe: Probe) -> float:
    """The largest difference (nats) between the engine's logprobs and the probe's."""
    found = engine.probe_logprobs(probe.token_ids)
    differences = [abs(a - b) for a, b in zip(found, probe.logprobs, strict=True)]
    # NaN compares as false with everything and would pass any tolerance
    return max((math.inf if math.isnan(difference) else difference for difference in differences), default=0)


class _Clock:
    """Seconds of named phases."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - start
