"""The fleet of rollout engines, in a thread of its own.

Training blocks its thread for as long as a step takes. Meanwhile engines must still be watched, and those
that join must be given their weights.
"""

import asyncio
import faulthandler
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.core import FleetCore
from grpo_runtime.engines.fleet.settings import FleetSettings, fleet_settings
from grpo_runtime.process.background import LoopThread
from grpo_runtime.rollouts.interface import (
    FailedSyncs,
    GenerateRequest,
    Generation,
    OnFinished,
    OnRead,
    Probe,
    Recomputed,
    Rollout,
    SyncReport,
)
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.weight_sync.backend_of_run import backend_of_trainer
from grpo_runtime.weight_sync.interface import Backend
from grpo_runtime.weight_sync.source import WeightSource

log = logging.getLogger(__name__)

CLOSE_SECONDS = 30.0
"""Time limit to close the connections, which takes milliseconds."""


def open_fleet(
    trainer: TrainerSettings, *, beside_weights: Callable[[], Mapping[str, bytes]] = dict
) -> "Fleet":
    """The fleet of a trainer pod. `beside_weights` gives the files that make a folder of weights a model, for
    a backend that keeps such folders.

    Raises UserError as `fleet_settings` and `backend_of_trainer` do, and KnownError as a backend does that
    cannot begin a run.
    """
    backend = backend_of_trainer(trainer, model_files=beside_weights)
    return Fleet(fleet_settings(trainer), backend=backend)


class Fleet:
    """`Engines` in other pods. It starts to look for them at once; `close` it at the end."""

    is_concurrent = True

    def __init__(
        self, settings: FleetSettings, *, backend: Backend[Any], close_seconds: float = CLOSE_SECONDS
    ) -> None:
        self._close_seconds = close_seconds
        self._thread = LoopThread("fleet")
        self._taken = Recomputed()
        self._core = self._thread.begin(_make_core(settings, backend)).result()

    @property
    def num_stale_answers(self) -> int:
        """Completions thrown away because weights had sampled them that may not."""
        return self._core.num_stale_answers

    @property
    def num_recomputed_tokens(self) -> int:
        """Tokens that engines computed again because weights changed within a completion."""
        return self._core.num_recomputed_tokens

    @property
    def num_resent(self) -> int:
        """Requests given to another engine because the first one was lost."""
        return self._core.num_resent

    @property
    def num_handed_over(self) -> int:
        """How often a sample went on from the tokens that an engine had handed over."""
        return self._core.num_handed_over

    @property
    def num_lost(self) -> int:
        """Engine processes lost so far."""
        return self._core.num_lost

    def counts(self) -> EngineCounts:
        """Engines by state, as of now."""
        return self._core.counts()

    async def sync(
        self,
        weights: WeightSource,
        *,
        version: PolicyVersion,
        probe: Probe | None,
        on_read: OnRead | None = None,
    ) -> SyncReport:
        """Give every engine that can be reached the weights, and verify them with the probe. `weights` is
        read once, before this returns, in another thread."""
        return await self._thread.run(self._core.sync(weights, version=version, probe=probe, on_read=on_read))

    async def rest(self) -> None:
        """Nothing to do: engines in other pods share no memory with the trainer."""

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        """Sample all requests, in the order given. Engines in other pods are always awake."""
        return await self._thread.run(self._core.generate(requests, on_finished=on_finished))

    def generation(self) -> Generation | None:
        """How far the running call of `generate` has come; None when none runs."""
        return self._core.generation()

    def take_idle_seconds(self) -> Mapping[str, float]:
        """Engine -> the seconds in which it could serve and had no call, or was paused, since they were last
        taken."""
        return self._core.take_idle_seconds()

    def take_recomputed(self) -> Recomputed:
        """What engines have computed again since it was last taken."""
        before, self._taken = self._taken, self._core.recomputed
        return self._taken.since(before)

    def failed_syncs(self) -> Mapping[str, FailedSyncs]:
        """Engine -> its failed weight syncs, for engines that serve no more because of them."""
        return self._core.failed_syncs()

    async def close(self) -> None:
        """Let go of every connection; the engines stay as they are. A thread that is blocked in a transfer is
        left running, so that the run can end."""
        closing = asyncio.wrap_future(self._thread.begin(self._core.close()))
        await asyncio.wait({closing}, timeout=self._close_seconds)
        if not closing.done():
            log.error(
                "the fleet is not closed after %g s and is left running; every thread's stack:",
                self._close_seconds,
            )
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            return
        await closing
        await self._thread.close()


async def _make_core(settings: FleetSettings, backend: Backend[Any]) -> FleetCore:
    return FleetCore(settings, backend=backend)
