"""What `scheduling` of a job adds to its pods: the group that they get their nodes with, and how near to each
other these are. Pure."""

from grpo_api.contract import labels
from grpo_api.contract.environment import Role
from grpo_api.v1alpha1.spec import PodTopologySpec
from grpo_operator.children.gangs import gang_scheduler_of, group_size
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.template import Open
from grpo_operator.cluster.kinds import KubeObject

_LARGEST_WEIGHT = 100


def with_scheduling(pod: KubeObject, snapshot: JobSnapshot, *, role: Role) -> KubeObject:
    """A template of pods with what the job's `scheduling` adds. A pod that is alone in its group only goes to
    the scheduler of the others, so that no two schedulers give away the same nodes. What `podTemplate` names
    wins as a scheduler, and is added to as an affinity."""
    scheduling = snapshot.spec.scheduling
    if scheduling is None:
        return pod
    scheduler = gang_scheduler_of(snapshot)
    if scheduler is not None and scheduler.scheduler_name is not None:
        pod = {**pod, "spec": {"schedulerName": scheduler.scheduler_name, **pod["spec"]}}
    if group_size(snapshot, role=role) == 1:
        return pod
    group = _group(snapshot, role=role)
    pod = _with_parts(pod, {"metadata": {"labels": {labels.POD_GROUP: group}}})
    if scheduler is not None:
        pod = _with_parts(pod, scheduler.member(group))
    topologies = scheduling.topology
    topology = (topologies.engine if role is Role.ROLLOUT else topologies.trainer) if topologies else None
    return pod if topology is None else _near_each_other(pod, topology, group=group)


def _group(snapshot: JobSnapshot, *, role: Role) -> str:
    """The name of the group, with what differs between the pods left open."""
    if role is Role.TRAINER:
        return snapshot.names.trainer_group(attempt=Open.ATTEMPT.value)
    return snapshot.names.engine_group(replica=Open.REPLICA.value, incarnation=Open.INCARNATION.value)


def _with_parts(pod: KubeObject, parts: KubeObject) -> KubeObject:
    """A pod with more labels, annotations and fields. They win over those of the job."""
    metadata, added = pod["metadata"], parts.get("metadata", {})
    maps = {key: {**metadata.get(key, {}), **values} for key, values in added.items()}
    return {**pod, "metadata": {**metadata, **maps}, "spec": {**pod["spec"], **parts.get("spec", {})}}


def _near_each_other(pod: KubeObject, topology: PodTopologySpec, *, group: str) -> KubeObject:
    """The affinity is for the scheduler, the annotation for Kueue, which chooses the nodes before it. The
    first pod of a group matches its own term, and is free to go anywhere."""
    label = topology.required or topology.preferred
    kind = "required" if topology.required else "preferred"
    term = {"labelSelector": {"matchLabels": {labels.POD_GROUP: group}}, "topologyKey": label}
    entry = term if topology.required else {"weight": _LARGEST_WEIGHT, "podAffinityTerm": term}
    affinity = pod["spec"].get("affinity", {})
    near, field = affinity.get("podAffinity", {}), f"{kind}DuringSchedulingIgnoredDuringExecution"
    near = {**near, field: [*near.get(field, ()), entry]}
    annotation = {f"kueue.x-k8s.io/podset-{kind}-topology": label}
    return _with_parts(
        pod,
        {
            "metadata": {"annotations": annotation},
            "spec": {"affinity": {**affinity, "podAffinity": near}},
        },
    )
