"""Engines of stated speed, behind the dispatch that a fleet has. No process and no model."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_async.cases import Scripted
from grpo_runtime.engines.fleet.dispatch import Dispatch, DispatchLimits, Worker
from grpo_runtime.engines.fleet.engine_calls import Bundle, bundle
from grpo_runtime.engines.fleet.settings import samples_in_flight
from grpo_runtime.rollouts.interface import (
    FailedSyncs,
    GenerateRequest,
    Generation,
    OnFinished,
    OnRead,
    Probe,
    Rollout,
    SyncReport,
    VersionSpan,
)
from grpo_runtime.weight_sync.source import WeightSource

TOKEN_ID = 5
"""Every token that they sample."""


class ScriptedEngines:
    """Every completion takes the time of its own tokens; which they are is not asked."""

    is_concurrent = True

    def __init__(self, scripted: Scripted, run_config: RunConfig) -> None:
        self.version: PolicyVersion | None = None
        self._scripted = scripted
        self._max_in_flight = samples_in_flight(run_config)
        self._is_asynchronous = run_config.asynchronous is not None
        self._workers: Mapping[str, Worker] = {
            name: _Engine(name, self, scripted)
            for name in (f"engine-{number}" for number in range(scripted.num_engines))
        }
        self._dispatch = Dispatch(
            self,
            limits=DispatchLimits(max_in_flight=self._max_in_flight, empty_wait_seconds=60.0),
            clock=time.monotonic,
            num_tokens=self._most_tokens if self._is_asynchronous else None,
        )

    # --- what the training loop asks of engines ---

    def counts(self) -> EngineCounts:
        """All of them, all the time."""
        num = len(self._workers)
        return EngineCounts(desired=num, known=num, current=num)

    def generation(self) -> Generation | None:
        """How far the running calls of `generate` have come."""
        return self._dispatch.generation()

    def take_idle_seconds(self) -> Mapping[str, float]:
        """Not measured."""
        return {}

    def take_recomputed(self) -> None:
        """Nothing is computed."""

    def failed_syncs(self) -> Mapping[str, FailedSyncs]:
        """None fails."""
        return {}

    async def sync(
        self,
        weights: WeightSource,
        *,
        version: PolicyVersion,
        probe: Probe | None,
        on_read: OnRead | None = None,
    ) -> SyncReport:
        """Take the stated time; engines sample on meanwhile."""
        if on_read is not None:
            on_read()
        await asyncio.sleep(self._scripted.sync_seconds)
        self.version = version
        return SyncReport(version=version, synced=tuple(self._workers), failed={}, num_bytes=0)

    async def rest(self) -> None:
        """They have nothing to give back."""

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        """Sample all requests, in bundles as a fleet does."""
        bundles = bundle(
            requests,
            num_engines=None if self._is_asynchronous else len(self._workers),
            max_samples=self._max_in_flight,
        )
        return await self._dispatch.run(bundles, on_finished=on_finished)

    async def close(self) -> None:
        """Nothing is open."""

    # --- what the dispatch asks of a fleet ---

    def workers(self) -> Mapping[str, Worker]:
        """All of them."""
        return self._workers

    def is_lost(self, key: str) -> bool:
        """None is."""
        return False

    def mark_unhealthy(self, key: str, error: Exception) -> None:
        """None fails unless there is a bug."""
        raise error

    def goes_on(self, bundle: Bundle) -> bool:
        """None hands over a completion."""
        return False

    async def hand_over(self, key: str) -> None:
        """None is lost."""

    async def changed(self, *, timeout_seconds: float) -> None:
        """Nothing changes."""
        await asyncio.sleep(timeout_seconds)

    def _most_tokens(self, bundle: Bundle) -> int:
        return bundle.num_tokens(max_tokens=round(self._scripted.lengths.highest))


class _Engine:
    """One engine. As in vLLM, completions that find no place wait for one in its own queue, and a call is
    answered when the last of its completions is finished."""

    def __init__(self, key: str, engines: ScriptedEngines, scripted: Scripted) -> None:
        self.key = key
        self._engines = engines
        self._scripted = scripted
        self._places = asyncio.Semaphore(scripted.samples_per_engine)

    def may_take(self, bundle: Bundle) -> bool:
        """None has begun."""
        return True

    async def sample(self, bundle: Bundle) -> list[Rollout]:
        """The completions, with the weights that there are when each begins and when it ends."""
        seeds = range(bundle.seed, bundle.seed + bundle.num_samples)
        return list(await asyncio.gather(*(self._sample_one(bundle, seed) for seed in seeds)))

    async def _sample_one(self, bundle: Bundle, seed: int) -> Rollout:
        length = self._scripted.num_tokens(seed)
        async with self._places:
            before = self._version()
            await asyncio.sleep(length * self._scripted.seconds_per_token)
            return self._rollout(bundle, length, before=before, after=self._version())

    def _version(self) -> PolicyVersion:
        assert self._engines.version is not None
        return self._engines.version

    def _rollout(
        self, bundle: Bundle, length: int, *, before: PolicyVersion, after: PolicyVersion
    ) -> Rollout:
        ends = [length] if before == after else [1, length]
        versions = tuple(
            VersionSpan(version, start, end)
            for version, start, end in zip((before, after), [0, *ends], ends, strict=False)
        )
        return Rollout(
            prompt_ids=bundle.prompt_ids,
            completion_ids=(TOKEN_ID,) * length,
            rollout_logprobs=(-1.0,) * length,
            versions=versions,
            is_terminated=True,
            engine=self.key,
        )
