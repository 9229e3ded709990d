"""Policies: a job that is in a queue of Kueue has its Workloads there, and Kueue learns what becomes of them.

The protocol is that of Kueue's own integrations (pkg/controller/jobframework/reconciler.go): pods only while
the Workload is admitted; after an eviction first the pods go and then the quota; at the end it is Finished. A
job that somebody suspends gives its quota back by the deletion of its Workloads, and asks for it again later.
"""

from collections.abc import Iterable
from datetime import datetime

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, QueueStatus
from grpo_operator.children.names import Names
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.workloads import QueueAndPriority, extra_workload, job_workload
from grpo_operator.cluster.kinds import WORKLOADS, KubeObject
from grpo_operator.observe.observed import EngineView, Observed, WorkloadView
from grpo_operator.plan.conditions import condition, is_true
from grpo_operator.plan.draft import Deletion, Draft, Policy, Stage
from grpo_operator.plan.queue import (
    is_for_queue,
    job_workload_of,
    num_base_engines,
    queue_and_priority,
    queue_asked_for,
)
from grpo_operator.plan.snapshots import snapshot_to_come
from grpo_operator.plan.suspension import pods_left
from grpo_operator.plan.workload_status import patched, pods_ready, reclaimable, with_quota_given_back

POSITION_SECONDS = 30.0
"""How often a job that waits says its position in the queue anew: no event says that it has changed."""


def choose_queue(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """The queue is what the spec or the label says when the job begins, and stays that until somebody
    suspends the job. It is then what they say when that is over: nobody need have seen them before."""
    spec, status = observed.job.spec, draft.status
    if spec is None:
        return draft
    is_out_of_queue = status.suspension is not None and not is_for_queue(status)
    if status.attempt > 0 and not (status.is_suspended and is_out_of_queue):
        return draft
    name = queue_asked_for(observed.job)
    workload = Names.of(job=observed.job.name, uid=observed.job.uid).workload
    queue = QueueStatus(name=name, workload=workload) if name else None
    return draft if queue == status.queue else draft.with_status(queue=queue)


def keep_workloads(runtime_image: str) -> Policy:
    """The policy for an operator with this default image. While it is not known what Kueue has decided,
    nothing is done."""

    def keep(draft: Draft, observed: Observed, now: datetime) -> Draft:
        if observed.queue_problem or (draft.status.queue is None and not observed.workloads):
            return draft
        if draft.stage is Stage.DELETED:
            return _given_up(draft, observed)
        if draft.stage is Stage.ENDED:
            return _ended(draft, observed, now)
        if draft.stage is Stage.LEFT_ALONE:
            return _left_alone(draft, observed, now)
        if draft.stage is Stage.SUSPENDED:
            return _suspended(draft, observed, now, runtime_image=runtime_image)
        return _with_pods(draft, observed, now, runtime_image=runtime_image)

    return keep


def _given_up(draft: Draft, observed: Observed) -> Draft:
    """A finalizer may hold a deleted job, but not its quota. Without one the Workloads go with the job."""
    if not observed.job.is_held or pods_left(observed):
        return draft
    return _deleting(draft, observed.workloads.values())


def _ended(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Finished once no pod is left that could have the quota. The Workload of the job stays as long as the
    job."""
    extras = _extras(observed)
    draft = _deleting(draft, (extras[replica] for replica in extras.keys() - _replicas_with_pods(observed)))
    base, end = job_workload_of(observed), condition(draft.status, ConditionType.FINISHED)
    if base is None or base.is_finished or end is None or pods_left(observed):
        return draft
    reason = "Succeeded" if is_true(draft.status, ConditionType.COMPLETE) else "Failed"
    return patched(draft, base, now, {"Finished": (True, reason, end.message)})


def _left_alone(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """A job that nobody continues holds no quota without pods: others would be evicted for it, or wait. An
    engine whose quota Kueue takes goes, which needs no spec."""
    if not pods_left(observed):
        return _deleting(draft, observed.workloads.values())
    for replica, found in _extras(observed).items():
        engines = _engines_of(observed, replica)
        if found.is_evicted:
            draft = draft.deleting_pods(engines)
            draft = draft if engines else with_quota_given_back(draft, found, now)
    return draft


def _suspended(draft: Draft, observed: Observed, now: datetime, *, runtime_image: str) -> Draft:
    """Quota is given back once the pods are gone, and not before. Who is evicted stays in the queue; who is
    suspended by a person or a rule leaves it."""
    if pods_left(observed):
        return draft
    draft = _deleting(draft, _extras(observed).values())
    base = job_workload_of(observed)
    if not is_for_queue(draft.status):
        return _deleting(draft, [base] if base else [])
    if base is None:
        return _creating_base(draft, observed, runtime_image=runtime_image)
    snapshot = _snapshot(draft, observed, runtime_image=runtime_image)
    if base.is_finished or (snapshot is not None and _is_outdated(base, draft, observed, snapshot)):
        return _deleting(draft, [base])
    draft = with_quota_given_back(draft, base, now)
    if snapshot is not None and not base.has_quota:
        draft = patched(draft, base, now, {}, other=_reclaimable(snapshot, observed, base))
    return draft.waking_after(POSITION_SECONDS)


def _with_pods(draft: Draft, observed: Observed, now: datetime, *, runtime_image: str) -> Draft:
    """While the job has pods, or makes them again later in the same attempt. One that has left its queue
    before it was admitted needs no Workload. One that is gone is made again beside the pods: they stay until
    Kueue has looked at it."""
    if draft.status.queue is None:
        return _deleting(draft, observed.workloads.values())
    base = job_workload_of(observed)
    if base is None:
        return _creating_base(draft, observed, runtime_image=runtime_image)
    if not base.is_admitted:
        return draft
    draft = patched(
        draft,
        base,
        now,
        pods_ready(base, is_ready=_are_base_pods_ready(draft, observed, base)),
        other=_reclaimable(draft.snapshot, observed, base),
    )
    return _keep_extras(draft, observed, base, now)


def _keep_extras(draft: Draft, observed: Observed, base: WorkloadView, now: datetime) -> Draft:
    """Each engine that has no quota from the Workload of the job has a Workload of its own, also one that is
    added again after others were given back: what was reclaimable never comes back. It has the priority of
    the job's, whatever the job names by now: Kueue is to take it before the job."""
    num_base = num_base_engines(base, draft.snapshot)
    wanted = range(num_base, draft.snapshot.num_engines)
    for replica, found in _extras(observed).items():
        engines = _engines_of(observed, replica)
        if (replica not in wanted or found.is_finished) and not engines:
            draft = _deleting(draft, [found])
        elif found.is_evicted and not engines:
            draft = with_quota_given_back(draft, found, now)
        elif found.is_admitted:
            is_ready = any(_runs(engine) for engine in engines)
            draft = patched(draft, found, now, pods_ready(found, is_ready=is_ready))
    missing = [
        replica
        for replica in wanted
        if draft.snapshot.names.extra_workload(replica=replica) not in observed.workloads
    ]
    asked = QueueAndPriority(base.queue, base.priority_class, base.priority)
    return draft.creating(*(extra_workload(draft.snapshot, asked, replica=replica) for replica in missing))


def _creating_base(draft: Draft, observed: Observed, *, runtime_image: str) -> Draft:
    snapshot = _snapshot(draft, observed, runtime_image=runtime_image)
    asked = queue_and_priority(observed, draft.status.queue.name) if draft.status.queue else None
    if snapshot is None or asked is None or isinstance(asked, ReasonMessage):
        return draft
    return draft.creating(job_workload(snapshot, asked))


def _snapshot(draft: Draft, observed: Observed, *, runtime_image: str) -> JobSnapshot | None:
    if draft.known_snapshot is not None or draft.status.attempt > 0:
        return draft.known_snapshot
    return snapshot_to_come(observed.job, runtime_image=runtime_image)


def _is_outdated(base: WorkloadView, draft: Draft, observed: Observed, snapshot: JobSnapshot) -> bool:
    """Whether a Workload is of another queue than the job, or without quota and asks for another priority or
    for too few engines. One that asks for too many keeps its position in the queue (`reclaimablePods`). One
    that somebody has deactivated stays, because another would be active."""
    queue = draft.status.queue
    if queue is None or base.queue != queue.name:
        return queue is not None
    if base.has_quota or not base.is_active:
        return False
    asked = queue_and_priority(observed, queue.name) if observed.job.spec else None
    if isinstance(asked, QueueAndPriority) and asked.priority_class != base.priority_class:
        return True
    return draft.status.attempt == 0 and num_base_engines(base, snapshot) < snapshot.num_engines


def _extras(observed: Observed) -> dict[int, WorkloadView]:
    """The Workloads of single engines, by replica."""
    names = Names.of(job=observed.job.name, uid=observed.job.uid)
    found = {names.extra_replica(name): workload for name, workload in observed.workloads.items()}
    return {replica: workload for replica, workload in found.items() if replica is not None}


def _engines_of(observed: Observed, replica: int) -> list[EngineView]:
    return [engine for engine in observed.rollouts if engine.position[0] == replica]


def _replicas_with_pods(observed: Observed) -> set[int]:
    """Replicas of which a pod has not ended. An engine is over as soon as one of its pods is."""
    pods = (pod for engine in observed.rollouts for pod in engine.pods)
    return {pod.position[0] for pod in pods if not pod.is_over}


def _deleting(draft: Draft, workloads: Iterable[WorkloadView]) -> Draft:
    each = (found for found in workloads if not found.is_deleting)
    return draft.deleting(*(Deletion(WORKLOADS, found.name, found.uid) for found in each))


def _runs(engine: EngineView) -> bool:
    is_running = all(pod.phase == "Running" for pod in engine.pods)
    return engine.is_alive and engine.is_whole and is_running


def _are_base_pods_ready(draft: Draft, observed: Observed, base: WorkloadView) -> bool:
    """Whether all pods run for which the Workload has quota. That an engine has weights is not asked: Kueue
    wants to know whether the pods got their nodes."""
    running = {engine.position[0] for engine in observed.rollouts if _runs(engine)}
    needed = range(min(num_base_engines(base, draft.snapshot), draft.snapshot.num_engines))
    return draft.is_running and all(replica in running for replica in needed)


def _reclaimable(snapshot: JobSnapshot, observed: Observed, base: WorkloadView) -> KubeObject:
    """Engines that are gone and not wanted any more."""
    num_with_pods = max((replica + 1 for replica in _replicas_with_pods(observed)), default=0)
    num_engines = max(snapshot.num_engines, num_with_pods)
    return reclaimable(base, num_engines=num_engines, pods_per_engine=snapshot.nodes_per_engine)
