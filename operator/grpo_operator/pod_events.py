"""Reads the Events of pods that do not start and do not say why: a failed mount shows nowhere else."""

import asyncio
import logging
import time
from collections.abc import Callable

from grpo_operator import errors
from grpo_operator.cache import Cache, Key, job_key
from grpo_operator.client import Client
from grpo_operator.kinds import EVENTS, PODS, Manifest
from grpo_operator.pod_view import is_silent

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 4.0
"""Most pods start within this time: nobody needs to ask about those."""
LONGEST_PAUSE_SECONDS = 20.0
_ROUND_SECONDS = 1.0
_LISTS_IN_FLIGHT = 8


def pause_seconds(waited: float) -> float:
    """Until a pod is asked about again: a pod that pulls a large image for an hour is not asked about every
    few seconds, and trouble that begins late is still seen soon."""
    return min(LONGEST_PAUSE_SECONDS, max(PATIENCE_SECONDS, waited / 2))


class EventReader:
    """One small list for each pod that is silent for long; none while all pods start as they should."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        *,
        wake: Callable[[Key], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._cache = cache
        self._wake = wake
        self._monotonic = monotonic
        self._silent: dict[str, tuple[float, float]] = {}
        """Uid of a silent pod -> (since when, when to ask about it)."""
        self._limit = asyncio.Semaphore(_LISTS_IN_FLIGHT)
        self._complaint = ""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_ROUND_SECONDS)

    async def look(self) -> None:
        """Ask about every silent pod whose time has come."""
        now = self._monotonic()
        silent = {pod["metadata"]["uid"]: pod for pod in self._cache.every_pod() if is_silent(pod)}
        fresh = (now, now + PATIENCE_SECONDS)
        self._silent = {uid: self._silent.get(uid, fresh) for uid in silent}
        due = [pod for uid, pod in silent.items() if self._silent[uid][1] <= now]
        for pod in due:
            since, _ = self._silent[pod["metadata"]["uid"]]
            self._silent[pod["metadata"]["uid"]] = (since, now + pause_seconds(now - since))
        await asyncio.gather(*(self._read(pod) for pod in due))

    async def _read(self, pod: Manifest) -> None:
        meta = pod["metadata"]
        try:
            async with self._limit:
                found = await self._client.list(
                    EVENTS, meta["namespace"], fields=f"involvedObject.uid={meta['uid']}"
                )
        except errors.KubernetesError as error:
            # Without Events a pod is less well explained; everything else goes on.
            if str(error) != self._complaint:
                log.warning("the Events of %s/%s cannot be read: %s", meta["namespace"], meta["name"], error)
            self._complaint = str(error)
            return
        key = job_key(PODS, pod)
        if self._cache.put_events(pod, found.items) and key is not None:
            self._wake(key)
