"""Reads the Events of pods that do not start and whose status does not say why, such as for a failed
mount."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import EVENTS, PODS, KubeObject
from grpo_operator.observe.cache import Cache, Key, job_key
from grpo_operator.observe.fair_limit import FairLimit
from grpo_operator.observe.pod_view import is_silent
from grpo_operator.observe.stored import pruned

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 4.0
"""Most pods start within this time, and their Events are not needed."""
LONGEST_PAUSE_SECONDS = 20.0
_ROUND_SECONDS = 1.0
LISTS_IN_FLIGHT = 8
LISTS_IN_FLIGHT_OF_A_NAMESPACE = 6
"""The pods of one namespace, which may be hundreds, leave room for those of others."""


def pause_seconds(waited: float) -> float:
    """Seconds until the Events of a pod are read again, after it has waited for `waited` seconds. A pod that
    pulls a large image for an hour is not looked up every few seconds, and a problem that begins late is
    still seen soon."""
    return min(LONGEST_PAUSE_SECONDS, max(PATIENCE_SECONDS, waited / 2))


class EventReader:
    """Lists the Events of each pod whose status says nothing for long. No request while all pods start
    well."""

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
        """Uid of a silent pod -> (since when, when to read its Events)."""
        self._reads: dict[str, asyncio.Task[None]] = {}
        """By the uid of the pod; those that are under way or wait for others."""
        self._limit = FairLimit(LISTS_IN_FLIGHT, num_of_a_namespace=LISTS_IN_FLIGHT_OF_A_NAMESPACE)
        self._logged_error = ""

    async def run(self) -> None:
        """Read until cancelled. Lists that take long delay no other pod: theirs is left out until they are
        over."""
        async with asyncio.TaskGroup() as group:
            while True:
                self.read_due(group)
                await asyncio.sleep(_ROUND_SECONDS)

    def read_due(self, group: asyncio.TaskGroup) -> None:
        """Begin to read the Events of every silent pod that is due."""
        now = self._monotonic()
        self._reads = {uid: read for uid, read in self._reads.items() if not read.done()}
        silent = {pod["metadata"]["uid"]: pod for pod in self._cache.pending_pods() if is_silent(pod)}
        fresh = (now, now + PATIENCE_SECONDS)
        self._silent = {uid: self._silent.get(uid, fresh) for uid in silent}
        for uid, pod in silent.items():
            since, due = self._silent[uid]
            if due <= now and uid not in self._reads:
                self._silent[uid] = (since, now + pause_seconds(now - since))
                self._reads[uid] = group.create_task(self._read(pod))

    async def _read(self, pod: KubeObject) -> None:
        meta = pod["metadata"]
        try:
            async with self._limit.under_way(meta["namespace"]):
                found = await self._client.list(
                    EVENTS,
                    meta["namespace"],
                    fields=f"involvedObject.uid={meta['uid']}",
                    keep=partial(pruned, EVENTS),
                )
        except errors.KubernetesError as error:
            # Without Events only the explanation is poorer, so everything else continues.
            if str(error) != self._logged_error:
                log.warning("the Events of %s/%s cannot be read: %s", meta["namespace"], meta["name"], error)
            self._logged_error = str(error)
            return
        key = job_key(PODS, pod)
        if self._cache.put_events(pod, found.items) and key is not None:
            self._wake(key)
