"""What Kueue has decided about a job: whether it may have pods, which engines have quota, and where the pods
go. Pure."""

from grpo_api.contract.environment import Role
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.children.names import Names
from grpo_operator.children.placement import Placement
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.workloads import Place
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


def why_not_admitted(observed: Observed, status: GRPOJobStatus) -> ReasonMessage | None:
    """Why a job may have no pods, as its queue has it; None where it may, or is in no queue. While nobody can
    say what Kueue has decided, a job stays as it is."""
    queue = status.queue
    if queue is None:
        return None
    is_waiting = status.attempt == 0 or status.is_suspended
    place = f"queue {queue.name}"
    if observed.queue_problem:
        why = ReasonMessage(Reason.QUEUE_UNAVAILABLE, f"{place}: {observed.queue_problem}")
        return why if is_waiting else None
    found = job_workload_of(observed)
    if found is not None and found.is_admitted and found.queue == queue.name:
        where = placement_of(found, observed, role=Role.TRAINER)
        return where if is_waiting and isinstance(where, ReasonMessage) else None
    if found is None:
        return _without_workload(observed, place)
    if found.queue != queue.name:
        reason, said = Reason.QUEUED, f"the Workload in queue {found.queue} goes first"
    elif found.is_evicted and found.has_quota:
        reason, said = Reason.EVICTED_FROM_QUEUE, why_waiting(found)
    else:
        reason, said = Reason.QUEUED, why_waiting(found) + _before(observed, found)
    return ReasonMessage(reason, f"{place}: {said}")


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


def _without_workload(observed: Observed, place: str) -> ReasonMessage:
    name = Names.of(job=observed.job.name, uid=observed.job.uid).workload
    refused = _refused(observed, name)
    if refused is not None:
        return ReasonMessage(refused.reason, f"{place}: {refused.message}")
    found = place_of(observed, place)
    if isinstance(found, ReasonMessage):
        return ReasonMessage(found.reason, f"{place}: {found.message}")
    return ReasonMessage(Reason.QUEUED, f"{place}: Workload {name} is being made")


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


def place_of(observed: Observed, queue: str) -> Place | ReasonMessage:
    """The place that the job asks for in a queue, or why that is not known."""
    name = _priority_class(observed.job)
    if not name:
        return Place(queue)
    found = _read(observed, WORKLOAD_PRIORITY_CLASSES, name)
    return found if isinstance(found, ReasonMessage) else Place(queue, name, int(found["value"]))


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
    if draft.status.queue is None:
        return NOWHERE
    base = job_workload_of(observed)
    if base is None or not base.is_admitted:  # it has pods only because nobody can say what Kueue has decided
        why = observed.queue_problem or "the Workload of the job is not known"
        return ReasonMessage(Reason.QUEUE_UNAVAILABLE, f"queue {draft.status.queue.name}: {why}")
    return placement_of(base, observed, role=Role.TRAINER)


def placement_of_engine(draft: Draft, observed: Observed, replica: int) -> Placement | ReasonMessage:
    """Where the pods of an engine go, or why they are not made yet."""
    queue = draft.status.queue
    if queue is None:
        return NOWHERE
    found = workload_of_replica(draft, observed, replica)
    if found is not None and found.is_admitted:
        return placement_of(found, observed, role=Role.ROLLOUT)
    if observed.queue_problem:
        why = ReasonMessage(Reason.QUEUE_UNAVAILABLE, observed.queue_problem)
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
    if draft.status.queue is None or observed.queue_problem:
        return True
    found = workload_of_replica(draft, observed, replica)
    return found is not None and found.is_admitted
