"""Reconciles one job: observe, plan, apply. Every write is safe to repeat and safe with two operators."""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.apply.children import apply_children, delete_objects, stop_pods
from grpo_operator.apply.events import write_events
from grpo_operator.apply.status import stored_status, write_schema_skew, write_status
from grpo_operator.apply.workloads import patch_workloads
from grpo_operator.children.child import Child
from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import JOBS, PODS, SECRETS, WORKLOADS, KubeObject
from grpo_operator.find_missing import find_missing
from grpo_operator.metrics import OperatorMetrics
from grpo_operator.observe.cache import Cache, Key
from grpo_operator.observe.from_cache import (
    UnreadableStatusError,
    is_managed_elsewhere,
    job_and_pods,
    observe,
)
from grpo_operator.observe.observed import JobView, Observed, Refusal
from grpo_operator.observe.process_state import ProcessState
from grpo_operator.observe.stored import version_of
from grpo_operator.permissions import NO_PERMISSIONS, Permissions
from grpo_operator.plan import make_plan
from grpo_operator.plan.draft import Deletion
from grpo_operator.read_queue import read_queue
from grpo_operator.settings import GIVE_BACK_TIMES, GiveBackTimes

log = logging.getLogger(__name__)

_AT_ONCE = 0.0
_DELETE_AGAIN_SECONDS = 600.0
"""When a job that this operator may not delete is tried again: somebody may have given it the right."""
_AFTER_MAKING_SECONDS = 0.5
"""When pods and Workloads that were just made are looked at, together with what has changed by then. If
nobody takes them up, such as a scheduler that does not exist, nothing changes, and no event wakes the job."""


class Controller:
    """The handler behind the work queue."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        state: ProcessState,
        *,
        runtime_image: str,
        has_network_policies: bool = True,
        reports_from: Sequence[KubeObject] | None = None,
        give_back: GiveBackTimes = GIVE_BACK_TIMES,
        permissions: Permissions = NO_PERMISSIONS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        chance: Callable[[], float] = random.random,
        metrics: OperatorMetrics | None = None,
    ) -> None:
        self._client = client
        self._cache = cache
        self._state = state
        self._runtime_image = runtime_image
        self._has_network_policies = has_network_policies
        self._reports_from = reports_from
        self._give_back = give_back
        self._permissions = permissions
        self._clock = clock
        self._chance = chance
        self._metrics = metrics or OperatorMetrics()

    async def reconcile(self, key: Key) -> float | None:
        """Bring one job closer to what its spec says; returns in how many seconds to reconcile it again.

        Raises KubernetesError when the API server does not do what it should; the queue tries again later.
        """
        self._metrics.mark_look(key)
        # Whole seconds, as Kubernetes stores them: what is read back equals what was written.
        now = self._clock().replace(microsecond=0)
        observed = await self._observe(key, now=now)
        if observed is None:
            self._metrics.mark_status_same(key)
            return None
        plan = make_plan(
            observed,
            runtime_image=self._runtime_image,
            has_network_policies=self._has_network_policies,
            reports_from=self._reports_from,
            give_back=self._give_back,
            permissions=self._permissions,
            now=now,
        )
        job = observed.job
        if self._is_news(job, plan.status):
            try:
                written = await self._write_status(job, plan.status)
            except errors.NotFound:
                return None  # the watch event of its deletion is still to come
            if written is None:
                return self._state.remember_conflict(key, chance=self._chance())
            self._metrics.mark_status_written(key)
            job = written
        else:
            self._metrics.mark_status_same(key)
        self._state.mark_written(key, observed.remembered.report)
        self._state.mark_told(key, plan.notes)
        events = [
            event for event in plan.events if self._state.is_new_event(key, event.identity, uid=job.uid)
        ]
        await write_events(self._client, job, events, now=now)
        children = [deletion for deletion in plan.delete if deletion.kind != JOBS]
        is_one_gone = await delete_objects(self._client, self._cache, job, children)
        self._state.mark_deleted(key, [deletion.name for deletion in children])
        await stop_pods(self._client, self._cache, job, plan.stop)
        held, has_made_some = self._seconds_until_next_try(key, plan.create, now=now), False
        if not held:
            refusal = await apply_children(self._client, self._cache, job, plan.create)
            if self._remember_refusal(key, refusal, now=now):
                return _AT_ONCE
            if refusal is None:
                pods = [child.name for child in plan.create if child.kind == PODS]
                self._state.mark_made(key, pods, now=now)
                has_made_some = any(child.kind in (PODS, WORKLOADS) for child in plan.create)
                if any(child.kind == SECRETS and not child.is_expected for child in plan.create):
                    self._state.mark_tokens_made(key, now=now)
            held = self._state.seconds_until_next_try(key, now=now)
        has_changed = await patch_workloads(self._client, self._cache, job, plan.patch)
        waits = [
            _AT_ONCE if is_one_gone or has_changed else None,
            _AFTER_MAKING_SECONDS if has_made_some else None,
            held or None,
            plan.requeue_after,
            *[await self._delete_job(key, job, each) for each in plan.delete if each.kind == JOBS],
        ]
        return min((wait for wait in waits if wait is not None), default=None)

    async def _delete_job(self, key: Key, job: JobView, deletion: Deletion) -> float | None:
        """Delete the job, in the state in which its time was over: somebody may have raised it since. That
        this operator may not delete it is said on the job. Returns in how many seconds to plan again."""
        exactly = replace(deletion, resource_version=job.resource_version)
        try:
            is_gone = await delete_objects(self._client, self._cache, job, [exactly])
        except errors.Conflict:
            try:
                await self._take_in_newer(job)
            except errors.NotFound:
                return None  # the watch event of its deletion is still to come
            return self._state.remember_conflict(key, chance=self._chance())
        except (errors.Forbidden, errors.Invalid) as error:
            is_news = self._state.mark_undeletable(key, str(error))
            return _AT_ONCE if is_news else _DELETE_AGAIN_SECONDS
        return _AT_ONCE if is_gone else None

    def _is_news(self, job: JobView, status: GRPOJobStatus) -> bool:
        """Whether the stored status would be another one once this is written."""
        if status == job.status:
            return False  # most often so, and what the CRD lacks need not be looked up
        return self._cache.served_schema.fit(status, shown=stored_status(job)) != job.status

    def _seconds_until_next_try(self, key: Key, children: Sequence[Child], *, now: datetime) -> float:
        """How long nothing is made, because what comes first was refused. The Secret comes with every pod and
        is mostly there already."""
        first = {child.name for child in children if child.kind == SECRETS}
        first |= {child.name for child in [c for c in children if c.kind != SECRETS][:1]}
        is_first = self._state.refused_child(key) in first
        return self._state.seconds_until_next_try(key, now=now) if is_first else 0.0

    def _remember_refusal(self, key: Key, refusal: Refusal | None, *, now: datetime) -> bool:
        """Whether the reason is another than before, which is logged."""
        is_news = self._state.remember_refusal(key, refusal, now=now, chance=self._chance())
        if is_news and refusal is not None:
            log.warning("%s/%s: %s; it is tried again, less and less often", *key, refusal.why.message)
        return is_news

    async def _observe(self, key: Key, *, now: datetime) -> Observed | None:
        """The job as it is, or None when there is nothing to do for us."""
        job = self._cache.job(key)
        if job is None:
            self._state.forget(key)
        if job is None or is_managed_elsewhere(job):
            return None
        try:
            observed = self._observe_cache(key, now=now)
            while observed and not observed.job.is_deleting and await self._look_up(key, observed, now=now):
                observed = self._observe_cache(key, now=now)
        except UnreadableStatusError as error:
            await self._leave_to_newer_release(key, str(error), now=now)
            return None
        return observed

    async def _look_up(self, key: Key, observed: Observed, *, now: datetime) -> bool:
        """Ask the API server for what the cache lacks; whether the job must be observed again."""
        client, cache, state = self._client, self._cache, self._state
        if await read_queue(client, cache, observed, now=now):
            return True
        return await find_missing(client, cache, state, key=key, observed=observed, now=now)

    def _observe_cache(self, key: Key, *, now: datetime) -> Observed | None:
        """Update what this process knows from the cache, then observe the job. Raises
        UnreadableStatusError."""
        found = job_and_pods(self._cache, key)
        if found is None:
            return None
        remembered = self._state.remember_pods(key, found, now=now)
        return observe(self._cache, found, remembered)

    async def _leave_to_newer_release(self, key: Key, message: str, *, now: datetime) -> None:
        """Do nothing about a job whose status another release of the operator wrote, and write that on it."""
        job = self._cache.job(key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            return
        try:
            await write_schema_skew(self._client, self._cache, job, message, now=now)
        except (errors.NotFound, errors.Conflict):
            log.debug("%s/%s is gone", *key)

    async def _write_status(self, job: JobView, status: GRPOJobStatus) -> JobView | None:
        """The job at the version that this has made of it; None when it has changed since it was observed,
        and the cache then holds its newer state.

        Raises NotFound when the job is gone, and VersionsWentBack.
        """
        try:
            written = await write_status(self._client, self._cache, job, status)
        except errors.Conflict:
            await self._take_in_newer(job)
            return None
        return replace(job, resource_version=written["metadata"]["resourceVersion"])

    async def _take_in_newer(self, job: JobView) -> None:
        """Read a job that has changed since it was observed. Raises NotFound and VersionsWentBack."""
        log.debug("%s/%s has changed since it was observed: reconciled again", job.namespace, job.name)
        newer = await self._client.get(JOBS, job.namespace, job.name)
        if newer["metadata"]["uid"] == job.uid:
            errors.require_no_step_back(version_of(newer), known=int(job.resource_version))
        self._cache.put(JOBS, newer)
