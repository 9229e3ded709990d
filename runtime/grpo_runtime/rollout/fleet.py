"""The fleet of rollout engines, in a thread of its own: training blocks its thread for as long as a step
takes, and meanwhile engines must still be watched, and those that join given their weights.
"""

import asyncio
import faulthandler
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollout.fleet_core import FleetCore
from grpo_runtime.rollout.fleet_settings import FleetSettings, fleet_settings
from grpo_runtime.rollout.interface import GenerateRequest, NamedWeights, Probe, Rollout, SyncReport

__all__ = ["Fleet", "FleetSettings", "fleet_settings"]

T = TypeVar("T")

log = logging.getLogger(__name__)

CLOSE_SECONDS = 30.0
"""Letting go takes milliseconds."""


class Fleet:
    """`Engines` in other pods. It starts to look for them at once; `close` it at the end."""

    def __init__(self, settings: FleetSettings) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet", daemon=True)
        self._thread.start()
        self._core = asyncio.run_coroutine_threadsafe(_make_core(settings), self._loop).result()

    @property
    def num_stale_answers(self) -> int:
        """Completions thrown away because other weights than the newest had sampled them."""
        return self._core.num_stale_answers

    @property
    def num_resent(self) -> int:
        """Requests given to another engine because the first one was lost."""
        return self._core.num_resent

    @property
    def num_lost(self) -> int:
        """Engine processes lost so far."""
        return self._core.num_lost

    def counts(self) -> EngineCounts:
        """Engines by state, as of now."""
        return self._core.counts()

    async def sync(
        self, weights: Callable[[], NamedWeights], *, version: PolicyVersion, probe: Probe | None
    ) -> SyncReport:
        """See `Engines.sync`. `weights` is called once, before this returns, in another thread."""
        return await self._in_loop(self._core.sync(weights, version=version, probe=probe))

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Rollout]:
        """See `Engines.generate`."""
        return await self._in_loop(self._core.generate(requests))

    async def close(self) -> None:
        """See `Engines.close`. A thread that is stuck in a transfer is left behind: it must not hold up a run
        that has ended."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._in_loop(self._core.close())
        except TimeoutError:
            log.error(
                "the fleet is stuck after %g s and is left behind; every thread's stack:", CLOSE_SECONDS
            )
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    async def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


async def _make_core(settings: FleetSettings) -> FleetCore:
    return FleetCore(settings)
