"""Reconciles one job: observe, plan, apply. Every write is safe to repeat and safe with two operators."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator import errors
from grpo_operator.apply import announce, apply_children, delete_objects, write_skew, write_status
from grpo_operator.cache import Cache, Key
from grpo_operator.client import Client
from grpo_operator.kinds import JOBS, PODS
from grpo_operator.memory import Memory
from grpo_operator.names import Names
from grpo_operator.observe import UnreadableStatusError, observe
from grpo_operator.observed import JobView, Observed
from grpo_operator.plan import make_plan
from grpo_operator.plan.gang_view import current_gang, was_complete

log = logging.getLogger(__name__)

_RETRY_REFUSED_SECONDS = 10.0
_AT_ONCE = 0.0


class Controller:
    """The handler behind the work queue."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        memory: Memory,
        *,
        runtime_image: str,
        has_network_policies: bool = True,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._cache = cache
        self._memory = memory
        self._runtime_image = runtime_image
        self._has_network_policies = has_network_policies
        self._clock = clock

    async def reconcile(self, key: Key) -> float | None:
        """Bring one job closer to what its spec says; returns in how many seconds to look again.

        Raises KubernetesError when the API server is in trouble; the queue tries again later.
        """
        # Whole seconds, as Kubernetes stores them: what is read back equals what was written.
        now = self._clock().replace(microsecond=0)
        observed = await self._observe(key, now=now)
        if observed is None or observed.job.is_deleting:
            return None
        plan = make_plan(
            observed,
            runtime_image=self._runtime_image,
            has_network_policies=self._has_network_policies,
            now=now,
        )
        job = observed.job
        if plan.status != job.status:
            try:
                is_written = await self._write_status(job, plan.status)
            except errors.NotFound:
                return None  # its deletion is on its way to us
            if not is_written:
                self._memory.overtaken(key)
                return _AT_ONCE
        self._memory.told(key, observed.progress, observed.complaint)
        news = [said for said in plan.announcements if self._memory.is_unannounced(key, said, uid=job.uid)]
        await announce(self._client, job, news, now=now)
        await delete_objects(self._client, self._cache, job, plan.delete)
        refusal = await apply_children(self._client, self._cache, job, plan.create)
        is_news = self._memory.remember_refusal(key, refusal)
        if is_news:
            return _AT_ONCE
        waits = [_RETRY_REFUSED_SECONDS if refusal else None, plan.requeue_after]
        return min((wait for wait in waits if wait is not None), default=None)

    async def _observe(self, key: Key, *, now: datetime) -> Observed | None:
        """The job as it is, or None when there is nothing to do for us."""
        if self._cache.job(key) is None:
            self._memory.forget(key)
            return None
        try:
            observed = observe(self._cache, key, self._memory, now=now)
        except UnreadableStatusError as error:
            await self._keep_off(key, str(error), now=now)
            return None
        if observed and not observed.job.is_deleting and await self._find_missing(observed):
            return observe(self._cache, key, self._memory, now=now) or observed
        return observed

    async def _keep_off(self, key: Key, sentence: str, *, now: datetime) -> None:
        """Leave a job alone that another release of the operator looks after, and say so."""
        job = self._cache.job(key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            return
        try:
            await write_skew(self._client, self._cache, job, sentence, now=now)
        except (errors.NotFound, errors.Conflict):
            log.debug("%s/%s is gone", *key)

    async def _write_status(self, job: JobView, status: GRPOJobStatus) -> bool:
        """False when the job has changed since it was planned for; the cache then holds its newer state.

        Raises NotFound when the job is gone.
        """
        try:
            await write_status(self._client, self._cache, job, status)
        except errors.Conflict:
            log.debug("%s/%s changed meanwhile, looking again", job.namespace, job.name)
            self._cache.put(JOBS, await self._client.get(JOBS, job.namespace, job.name))
            return False
        return True

    async def _find_missing(self, observed: Observed) -> bool:
        """Ask the API server about trainer pods that the cache misses from a gang that was complete.

        A missing pod ends the attempt, so this is not left to a cache that may lag. True if one was found.
        """
        job = observed.job
        spec = observed.frozen_spec or job.spec
        if spec is None or not was_complete(job.status):
            return False
        gang = current_gang(observed, attempt=job.status.attempt)
        names = Names.of(job=job.name, uid=job.uid)
        missing = [
            names.trainer(attempt=job.status.attempt, index=index)
            for index in range(spec.trainer.num_nodes)
            if index not in gang
        ]
        found = await asyncio.gather(*(self._fetch_pod(job.namespace, name) for name in missing))
        return any(found)

    async def _fetch_pod(self, namespace: str, name: str) -> bool:
        try:
            return self._cache.put(PODS, await self._client.get(PODS, namespace, name))
        except errors.NotFound:
            return False
