"""What one rank does with its engine, or its part of one, in the order that shared memory asks for.

    wake the weights -> load -> wake the KV cache -> forget cached prefixes -> verify -> generate -> sleep

Trainer and engine share one device: there is no room for the KV cache while the weights are loaded, nor for
either while the trainer computes.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollouts.interface import GenerateRequest, OnFinished, Probe, Rollout
from grpo_runtime.rollouts.sampling import probe_error
from grpo_runtime.torch_threads import engine_threads
from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.interface import (
    Backend,
    ControlChannel,
    Failures,
    Peer,
    PreparedWeights,
    SenderSettings,
)
from grpo_runtime.weight_sync.source import WeightSource

ENGINE = "engine"
"""The only one that the sender of a rank serves."""
PHASES = ("wake_weights", "transfer", "finish", "wake_kv_cache", "verify")
"""Phases of a sync, in order."""


@dataclass(frozen=True)
class RankSync:
    """What one sync did on one rank. `phase_seconds` are those of PHASES; without a probe the error is 0. See
    `PreparedWeights` for the bytes."""

    phase_seconds: tuple[float, ...]
    num_bytes: int
    num_bytes_sent: int
    probe_error: float


class LocalEngine(Protocol):
    """An engine in this process, or in one beside it. Everything blocks."""

    @property
    def channel(self) -> ControlChannel:
        """The verbs of weight transfer, as calls."""
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

    def sample(
        self, requests: Sequence[GenerateRequest], *, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        """One completion for each request, in their order."""
        ...

    def num_unfinished(self) -> int:
        """How many requests of the running `sample` are not finished. May be called in another thread."""
        ...

    def probe_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs (nats, temperature 1) of all tokens after the first."""
        ...


class RankEngine:
    """Keeps the weights of one LocalEngine new, and lets it sleep while the trainer computes."""

    is_starting_again = False
    """Never: an engine that is lost here ends its rank. `RecoveringEngine` starts another one."""

    def __init__(
        self,
        engine: LocalEngine,
        *,
        backend: Backend[Any],
        sleep_level: int,
        timeout_seconds: float,
        num_threads: int = 1,
        release_memory: Callable[[], None] = lambda: None,
    ) -> None:
        """`sleep_level` 0 leaves the engine awake all the time. `timeout_seconds` is for
        backends whose verbs await; those of vLLM in this process block. `num_threads` is what an engine in
        this process computes with on CPU. `release_memory` gives back what the
        trainer has cached of the device, before the engine takes it."""
        self._engine = engine
        self._num_threads = num_threads
        self._release_memory = release_memory
        self._sleep_level = sleep_level
        self._is_asleep = False
        self._backend = backend
        self._deadlines = Deadlines(timeout_seconds)
        peers = {ENGINE: Peer(engine.channel, host="localhost")}
        self._sender = backend.make_sender(peers, SenderSettings(self._deadlines))
        self._is_connected = False
        self._num_sampling = 0
        self._num_sampled = 0

    @property
    def num_finished(self) -> int:
        """How many samples of the running call, or else of the last one, are finished. May be read in
        another thread."""
        num_sampling = self._num_sampling
        num_unfinished = self._engine.num_unfinished() if num_sampling else 0
        # before the first request has reached the engine none is unfinished
        return self._num_sampled + (num_sampling - num_unfinished if num_unfinished else 0)

    def sync(self, weights: WeightSource, *, version: PolicyVersion, probe: Probe | None) -> RankSync:
        """Give the engine the weights. The caller compares the probe's error with its
        tolerance. Raises WeightSyncError."""
        # vLLM packs weights on CPU for the number of threads that it has, and computes wrongly with another
        with engine_threads(self._num_threads):
            return self._sync(weights, version=version, probe=probe)

    def _sync(self, weights: WeightSource, *, version: PolicyVersion, probe: Probe | None) -> RankSync:
        clock = _Clock()
        self._deadlines.new_weights()
        self._num_sampled = 0
        with clock.phase("wake_weights"):
            self._wake_up("weights")
        loaded = asyncio.run(self._load(weights, version=version, clock=clock))
        with clock.phase("wake_kv_cache"):
            self._wake_up("kv_cache")
            self._is_asleep = False
            self._engine.reset_prefix_cache()
        with clock.phase("verify"):
            error = 0.0
            if probe is not None:
                error = probe_error(self._engine.probe_logprobs(probe.token_ids), probe=probe)
        return RankSync(
            phase_seconds=tuple(clock.seconds[phase] for phase in PHASES),
            num_bytes=loaded.num_bytes,
            num_bytes_sent=loaded.num_bytes_sent,
            probe_error=error,
        )

    def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        """Sample all requests. The engine sleeps afterwards, because training follows, unless it is to stay
        awake for another call."""
        self._num_sampled, self._num_sampling = 0, len(requests)
        with engine_threads(self._num_threads):
            rollouts = self._engine.sample(requests, on_finished=on_finished) if requests else []
        self._num_sampled, self._num_sampling = len(rollouts), 0
        if not stays_awake:
            self.rest()
        return rollouts

    def rest(self) -> None:
        """Let the engine sleep, because training follows. It serves again after the next sync."""
        if self._sleep_level > 0 and not self._is_asleep:
            self._engine.sleep(self._sleep_level)
            self._is_asleep = True

    def close(self) -> None:
        """Let go of the connection by which weights travel."""
        asyncio.run(self._sender.shutdown())

    def _wake_up(self, tag: str) -> None:
        if self._is_asleep:
            self._release_memory()
            self._engine.wake_up(tag)

    async def _load(
        self, weights: WeightSource, *, version: PolicyVersion, clock: "_Clock"
    ) -> PreparedWeights:
        with clock.phase("transfer"):
            prepared: PreparedWeights = self._backend.prepare(weights)
        try:
            with clock.phase("transfer"):
                if not self._is_connected:
                    _check(await self._sender.init([ENGINE]))
                    self._is_connected = True
                _check(await self._sender.start([ENGINE]))
                _check(await self._sender.update(prepared, engines=[ENGINE]))
            with clock.phase("finish"):
                _check(await self._sender.finish(str(version), engines=[ENGINE]))
        finally:
            # a copy that is still being made must not see the policy change, also when nobody takes it
            await asyncio.to_thread(prepared.wait_until_read)
        return prepared


def _check(failures: Failures) -> None:
    """Raise what the engine failed with."""
    for error in failures.values():
        raise error


class _Clock:
    """Seconds of named phases, each of which may have several parts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start
