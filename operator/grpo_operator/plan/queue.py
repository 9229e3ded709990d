"""What Kueue has decided about a job: whether it may have pods, which engines have quota, and where the pods
go. Pure."""

from grpo_api.contract.environment import Role
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.children.names import Names
from grpo_operator.children.placement import Placement
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.workloads import QueueAndPriority
from grpo_operator.cluster.kinds import RESOURCE_FLAVORS, WORKLOAD_PRIORITY_CLASSES, Kind, KubeObject
from grpo_operator.observe.observed import JobView, Observed, WorkloadView
from grpo_operator.plan.draft import Draft

NOWHERE = Placement()
"""Of pods that are in no queue."""
_IN_NO_QUEUE = frozenset({Reason.SUSPENDED.value, Reason.SUSPENDED_BY_RULE.value})
"""Reasons of a suspension during which the job is in no queue."""


def job_workload_of(observed: Observed) -> WorkloadView | None:
    """The Workload of the trainer and the first engines."""
    return observed.workloads.get(Names.of(job=observed.job.name, uid=observed.job.uid).workload)


def queue_asked_for(job: JobView) -> str:
    """The queue that the job names; empty where it names none. The spec wins over the label."""
    return (job.spec.queue_name if job.spec else None) or job.queue_label


def is_for_queue(status: GRPOJobStatus) -> bool:
    """Whether the newest suspension of the job is a wait in its queue. A job that a person or a rule suspends
    leaves the queue."""
    suspension = status.suspension
    return status.queue is not None and suspension is not None and suspension.reason not in _IN_NO_QUEUE


def is_in_queue(status: GRPOJobStatus) -> bool:
    """Whether Kueue decides about the job now: it has a queue, and no person or rule suspends it."""
    return status.queue is not None and (not status.is_suspended or is_for_queue(status))


def is_undecided(observed: Observed) -> bool:
    """Whether nobody can say what Kueue has decided about a job: Workloads cannot be read, that of the job is
    gone, as all are once Kueue is removed, or Kueue has not looked at it since it was made. A job that has
    begun then keeps the pods that it has."""
    found = job_workload_of(observed)
    return bool(observed.queue_problem) or found is None or not found.conditions


def why_not_admitted(observed: Observed, status: GRPOJobStatus) -> ReasonMessage | None:
    """Why a job may have no pods, as its queue has it; None where it may, or is in no queue."""
    queue, found = status.queue, job_workload_of(observed)
    is_waiting = status.attempt == 0 or status.is_suspended
    if queue is None or (is_undecided(observed) and not is_waiting):
        return None
    why = _why_without_quota(observed, queue.name)
    if why is not None:
        return ReasonMessage(why.reason, f"queue {queue.name}: {why.message}")
    where = placement_of(found, observed, role=Role.TRAINER) if found else None
    return where if is_waiting and isinstance(where, ReasonMessage) else None


def _why_without_quota(observed: Observed, queue: str) -> ReasonMessage | None:
    """Why Kueue gives the pods of a job no quota in its queue; None where it does."""
    found = job_workload_of(observed)
    if observed.queue_problem or found is None:
        return why_undecided(observed, queue)
    if found.queue != queue:
        return ReasonMessage(Reason.QUEUED, f"the Workload in queue {found.queue} goes first")
    if found.is_admitted:
        return _why_anew(observed, found)
    if found.is_evicted and found.has_quota:
        return ReasonMessage(Reason.EVICTED_FROM_QUEUE, why_waiting(found))
    return why_undecided(observed, queue)


def why_undecided(observed: Observed, queue: str) -> ReasonMessage:
    """Why Kueue has decided nothing about a job that has no quota, or why nobody can say what."""
    found, asked = job_workload_of(observed), queue_and_priority(observed, queue)
    unread = asked if isinstance(asked, ReasonMessage) else None
    if observed.queue_problem:
        return ReasonMessage(Reason.QUEUE_UNAVAILABLE, observed.queue_problem)
    if found is not None:
        said = why_waiting(found) + _before(observed, found)
        return ReasonMessage(Reason.QUEUED, f"{said}; {unread.message}" if unread else said)
    name = Names.of(job=observed.job.name, uid=observed.job.uid).workload
    being_made = ReasonMessage(Reason.QUEUED, f"Workload {name} is being made")
    return _refused(observed, name) or unread or being_made


def _why_anew(observed: Observed, workload: WorkloadView) -> ReasonMessage | None:
    """Why the pods of a job go before they come again with the quota of its Workload: they are older. The
    quota that they had went with the Workload before it, and may have been of other nodes."""
    pods = (*observed.trainers, *(pod for engine in observed.rollouts for pod in engine.pods))
    made = [pod.created_at for pod in pods if pod.created_at and not pod.is_over]
    if workload.created_at is None or not made or min(made) >= workload.created_at:
        return None
    message = f"the Workload of its pods is gone and their quota with it; {workload.name} was made after them"
    return ReasonMessage(Reason.EVICTED_FROM_QUEUE, message)


def is_told_to_wait(observed: Observed) -> bool:
    """Whether Kueue has looked at the job and found no quota for it."""
    found = job_workload_of(observed)
    told = found.condition("QuotaReserved") if found else None
    return told is not None and told["status"] == "False"


def _before(observed: Observed, workload: WorkloadView) -> str:
    num = observed.num_before_in_queue
    if num is None or not is_pending(workload):
        return ""
    return " (it is the first in its queue)" if num == 0 else f" ({num} before it in its queue)"


def is_pending(workload: WorkloadView) -> bool:
    """Whether it has no quota, and waits for some."""
    return not (workload.has_quota or workload.is_finished or workload.is_deleting)


def _refused(observed: Observed, name: str) -> ReasonMessage | None:
    """Why the API server did not take the Workload of this name, if it was tried."""
    refusal = observed.remembered.refusal
    return refusal.why if refusal is not None and refusal.child == name else None


def why_waiting(workload: WorkloadView) -> str:
    """Why a Workload is not admitted, in Kueue's words."""
    if not workload.is_active:
        evicted = workload.condition("Evicted")
        # Kueue says nothing of it where the Workload was evicted before
        is_said = evicted is not None and evicted["reason"].startswith("Deactivated")
        said = f"{evicted['reason']}: {evicted.get('message', '')}; " if evicted and is_said else ""
        return f"{said}Kueue does not admit Workload {workload.name} until its spec.active is true"
    for kind, is_bad in (("Finished", "True"), ("Evicted", "True"), ("QuotaReserved", "False")):
        found = workload.condition(kind)
        waits_anew = kind == "Evicted" and not workload.has_quota and workload.condition("QuotaReserved")
        if found is not None and found["status"] == is_bad and found.get("message") and not waits_anew:
            return f"{found['reason']}: {found['message']}"
    if workload.has_quota:
        checks = ", ".join(f"{name} ({what})" for name, what in workload.open_checks.items())
        return f"the quota is reserved, and admission checks are not over: {checks or 'not known yet'}"
    return (
        f"Kueue has said nothing about Workload {workload.name} yet: does LocalQueue {workload.queue} exist?"
    )


def _priority_class(job: JobView) -> str:
    scheduling = job.spec.scheduling if job.spec else None
    return (scheduling.priority_class if scheduling else None) or job.priority_label


def queue_and_priority(observed: Observed, queue: str) -> QueueAndPriority | ReasonMessage:
    """What the job asks for in a queue, or why that is not known."""
    name = _priority_class(observed.job)
    if not name:
        return QueueAndPriority(queue)
    found = _read(observed, WORKLOAD_PRIORITY_CLASSES, name)
    return found if isinstance(found, ReasonMessage) else QueueAndPriority(queue, name, int(found["value"]))


def objects_needed(observed: Observed) -> set[tuple[Kind, str]]:
    """Objects of no namespace that the plan of a job in a queue reads."""
    if observed.job.status.queue is None and not queue_asked_for(observed.job):
        return set()
    name = _priority_class(observed.job)
    flavors = {
        (RESOURCE_FLAVORS, flavor)
        for workload in observed.workloads.values()
        for pod_set in workload.pod_sets.values()
        for flavor in pod_set.flavors
    }
    return flavors | ({(WORKLOAD_PRIORITY_CLASSES, name)} if name else set())


def _read(observed: Observed, kind: Kind, name: str) -> KubeObject | ReasonMessage:
    found = observed.cluster_objects.get((kind, name), f"{kind.name} {name} was not read yet")
    return ReasonMessage(Reason.QUEUE_UNAVAILABLE, found) if isinstance(found, str) else found


def placement_of(workload: WorkloadView, observed: Observed, *, role: Role) -> Placement | ReasonMessage:
    """Where the pods of a Workload go, or why that is not known."""
    pod_set = workload.pod_sets.get(role.value)
    if pod_set is None:
        return NOWHERE
    flavors = []
    for name in pod_set.flavors:
        found = _read(observed, RESOURCE_FLAVORS, name)
        if isinstance(found, ReasonMessage):
            return found
        flavors.append(found)
    return Placement.of(flavors=flavors, updates=pod_set.updates)


def num_base_engines(workload: WorkloadView, snapshot: JobSnapshot) -> int:
    """How many engines, those of the lowest indices, have their quota from the Workload of the job. What has
    become reclaimable never comes back."""
    engines = workload.pod_sets.get(Role.ROLLOUT.value)
    return engines.count // snapshot.nodes_per_engine if engines else 0


def workload_of_replica(draft: Draft, observed: Observed, replica: int) -> WorkloadView | None:
    """The Workload from which an engine has its quota, whether or not it is admitted; None where there is
    none."""
    base = job_workload_of(observed)
    if base is not None and replica < num_base_engines(base, draft.snapshot):
        return base
    return observed.workloads.get(draft.snapshot.names.extra_workload(replica=replica))


def placement_of_trainer(draft: Draft, observed: Observed) -> Placement | ReasonMessage:
    """Where the trainer pods go, or why they are not made yet."""
    queue, base = draft.status.queue, job_workload_of(observed)
    if queue is None:
        return NOWHERE
    if base is not None and base.is_admitted:
        return placement_of(base, observed, role=Role.TRAINER)
    why = why_undecided(observed, queue.name)
    return ReasonMessage(why.reason, f"queue {queue.name}: {why.message}")


def placement_of_engine(draft: Draft, observed: Observed, replica: int) -> Placement | ReasonMessage:
    """Where the pods of an engine go, or why they are not made yet."""
    queue = draft.status.queue
    if queue is None:
        return NOWHERE
    found, base = workload_of_replica(draft, observed, replica), job_workload_of(observed)
    if found is not None and found.is_admitted:
        return placement_of(found, observed, role=Role.ROLLOUT)
    if observed.queue_problem or base is None or not base.is_admitted:
        why = why_undecided(observed, queue.name)
    elif found is None:
        name = draft.snapshot.names.extra_workload(replica=replica)
        why = _refused(observed, name) or ReasonMessage(Reason.QUEUED, "its Workload is being made")
    else:
        why = ReasonMessage(Reason.QUEUED, why_waiting(found))
    return ReasonMessage(why.reason, f"engine {replica} is in queue {queue.name}: {why.message}")


def why_taken(draft: Draft, observed: Observed, replica: int) -> str:
    """Why Kueue took the quota of an engine that it has admitted again and that has not run since; empty
    where it did not."""
    found = workload_of_replica(draft, observed, replica)
    evicted = found.condition("Evicted") if found else None
    ready = found.condition("PodsReady") if found else None
    has_run = ready is not None and ready["reason"] != "WaitForStart"
    if evicted is None or evicted["status"] == "True" or has_run:
        return ""
    return str(evicted.get("message", "")).removeprefix("Previously: ") or "it does not say why"


def may_have_engine(draft: Draft, observed: Observed, replica: int) -> bool:
    """Whether an engine that is there may stay. While nobody can say what Kueue has decided, it does."""
    base = job_workload_of(observed)
    if draft.status.queue is None or observed.queue_problem or base is None or not base.is_admitted:
        return True
    found = workload_of_replica(draft, observed, replica)
    return found is not None and found.is_admitted
