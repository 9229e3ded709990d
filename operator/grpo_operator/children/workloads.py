"""The Workloads by which Kueue knows a job: one for the trainer and the first engines, and one for each
further engine, so that Kueue takes such an engine alone where somebody else needs its quota."""

from dataclasses import dataclass

from grpo_api.contract import labels
from grpo_api.contract.environment import Role
from grpo_operator.children.child import Child
from grpo_operator.children.rollout import rollout_pod
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.trainer import trainer_pod
from grpo_operator.cluster.kinds import WORKLOAD_PRIORITY_CLASSES, WORKLOADS, KubeObject


@dataclass(frozen=True)
class QueueAndPriority:
    """What a Workload asks for: a queue, and a priority in it."""

    queue: str
    priority_class: str = ""
    """Name of a WorkloadPriorityClass; empty where the job names none."""
    priority: int = 0
    """Its value."""


def job_workload(snapshot: JobSnapshot, asked: QueueAndPriority) -> Child:
    """The Workload of the trainer and of as many engines as there should be now."""
    pod_sets = [
        _pod_set(Role.TRAINER, trainer_pod(snapshot, attempt=1, index=0), snapshot.spec.trainer.num_nodes)
    ]
    if snapshot.num_engines:
        num_pods = snapshot.num_engines * snapshot.nodes_per_engine
        engines = _pod_set(Role.ROLLOUT, rollout_pod(snapshot, replica=0, incarnation=0), num_pods)
        fewest = snapshot.spec.rollout.min_replicas if snapshot.spec.rollout else None
        if fewest is not None and fewest < snapshot.num_engines:
            engines["minCount"] = fewest * snapshot.nodes_per_engine
        pod_sets.append(engines)
    return _workload(snapshot, asked, name=snapshot.names.workload, pod_sets=pod_sets)


def extra_workload(snapshot: JobSnapshot, asked: QueueAndPriority, *, replica: int) -> Child:
    """The Workload of one engine that is not in that of the job."""
    pods = _pod_set(
        Role.ROLLOUT, rollout_pod(snapshot, replica=replica, incarnation=0), snapshot.nodes_per_engine
    )
    return _workload(snapshot, asked, name=snapshot.names.extra_workload(replica=replica), pod_sets=[pods])


def _workload(
    snapshot: JobSnapshot, asked: QueueAndPriority, *, name: str, pod_sets: list[KubeObject]
) -> Child:
    metadata = snapshot.metadata(name, extra={labels.WORKLOAD_JOB_UID: snapshot.uid})
    [owner] = metadata["ownerReferences"]
    # Kueue reads the controller of a Workload, and does not come to an end where it may not read GRPOJobs
    metadata["ownerReferences"] = [{**owner, "controller": False}]
    spec: KubeObject = {"queueName": asked.queue, "podSets": pod_sets}
    if asked.priority_class:
        spec |= {
            "priorityClassRef": {
                "group": WORKLOAD_PRIORITY_CLASSES.group,
                "kind": WORKLOAD_PRIORITY_CLASSES.name,
                "name": asked.priority_class,
            },
            "priority": asked.priority,
        }
    body = {"apiVersion": WORKLOADS.api_version, "kind": WORKLOADS.name, "metadata": metadata, "spec": spec}
    return Child(WORKLOADS, body)


def _pod_set(role: Role, pod: Child, count: int) -> KubeObject:
    """Of the metadata of its template Kueue allows labels and annotations alone."""
    metadata = {
        key: pod.body["metadata"][key] for key in ("labels", "annotations") if key in pod.body["metadata"]
    }
    return {"name": role.value, "count": count, "template": {"metadata": metadata, "spec": pod.body["spec"]}}
