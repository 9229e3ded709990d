"""Gang scheduling: the PodGroup that a scheduler gives nodes as a whole, and how pods say they are in it.

To add a scheduler, give it a row of GANG_SCHEDULERS.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from grpo_api.contract import labels
from grpo_api.contract.environment import Role
from grpo_api.v1alpha1.spec import Gang
from grpo_api.v1alpha1.spec.pod_template import PodTemplateSpec
from grpo_operator.children.child import Child
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.cluster.kinds import Kind, KubeObject, pod_groups

WOKEN_AT_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Members:
    """The pods of a group, as their PodGroup has to know them."""

    num: int
    template: PodTemplateSpec | None
    """What the job adds to them."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels that the job gives them."""
        return (self.template and self.template.metadata and self.template.metadata.labels) or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations that the job gives them."""
        return (self.template and self.template.metadata and self.template.metadata.annotations) or {}

    @property
    def priority(self) -> dict[str, str]:
        """Their PriorityClass as a field of a PodGroup; empty where they name none."""
        settings = self.template.spec if self.template else None
        name = settings.priority_class_name if settings else None
        return {"priorityClassName": name} if name else {}


@dataclass(frozen=True)
class GangScheduler:
    """What gives the pods of a group their nodes together or none."""

    kind: Kind
    """Its PodGroups."""
    scheduler_name: str | None
    """The scheduler of pods whose podTemplate names none; None for that of the cluster."""
    spec: Callable[[Members], KubeObject]
    """The spec of a PodGroup."""
    member: Callable[[str], KubeObject]
    """What the pods of the PodGroup with this name have: parts of their metadata and of their spec."""
    prefixes: tuple[str, ...] = ()
    """How labels and annotations begin that it also reads of a PodGroup. Those of the pods are put there."""
    wake_seconds: float | None = None
    """After how long its PodGroup is written anew while the pods wait, so that it tries all of them again;
    None where it does so by itself."""


GANG_SCHEDULERS: Mapping[Gang, GangScheduler] = {
    # github.com/kubernetes-sigs/scheduler-plugins, pkg/coscheduling. A pod that has found a node waits for
    # the others, and keeps the node from other pods until the timeout. A pod that was turned away because
    # another one found none is not tried again when there is room for that one.
    Gang.COSCHEDULING: GangScheduler(
        pod_groups("scheduling.x-k8s.io", "v1alpha1", comes_with="the scheduler-plugins of Kubernetes"),
        scheduler_name="scheduler-plugins-scheduler",
        spec=lambda members: {"minMember": members.num, "scheduleTimeoutSeconds": 20},
        member=lambda name: {"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": name}}},
        wake_seconds=15.0,
    ),
    # volcano.sh, staging/src/volcano.sh/apis/pkg/apis/scheduling/v1beta1
    Gang.VOLCANO: GangScheduler(
        pod_groups("scheduling.volcano.sh", "v1beta1", comes_with="Volcano"),
        scheduler_name="volcano",
        spec=lambda members: {
            "minMember": members.num,
            "queue": members.annotations.get("scheduling.volcano.sh/queue-name", "default"),
            **members.priority,
        },
        member=lambda name: {"metadata": {"annotations": {"scheduling.k8s.io/group-name": name}}},
        prefixes=("volcano.sh/", "scheduling.volcano.sh/"),
    ),
    # github.com/kai-scheduler/KAI-Scheduler, docs/batch: External PodGroups. Without the second annotation
    # its pod-grouper makes one group of all pods of a job, of which one is enough.
    Gang.KAI: GangScheduler(
        pod_groups("scheduling.run.ai", "v2alpha2", comes_with="the KAI scheduler"),
        scheduler_name="kai-scheduler",
        spec=lambda members: {
            "minMember": members.num,
            "queue": members.labels.get("kai.scheduler/queue", "default-queue"),
            **members.priority,
        },
        member=lambda name: {
            "metadata": {"annotations": {"pod-group-name": name, "kai.scheduler/skip-podgrouper": "true"}}
        },
        prefixes=("kai.scheduler/",),
    ),
    # k8s.io/api v0.37, scheduling/v1beta1. Kubernetes 1.35 had spec.workloadRef for this, which is gone.
    Gang.NATIVE: GangScheduler(
        pod_groups(
            "scheduling.k8s.io",
            "v1beta1",
            comes_with="Kubernetes 1.37 or newer, with the feature gate GenericWorkload and this API enabled",
        ),
        scheduler_name=None,
        spec=lambda members: {
            "schedulingPolicy": {"gang": {"minCount": members.num}},
            **members.priority,
        },
        member=lambda name: {"spec": {"schedulingGroup": {"podGroupName": name}}},
    ),
}
"""What each value of `scheduling.gang` means."""


def gang_scheduler_of(snapshot: JobSnapshot) -> GangScheduler | None:
    """What gives the pods of a job their nodes together; None where nothing does."""
    scheduling = snapshot.spec.scheduling
    return GANG_SCHEDULERS[scheduling.gang] if scheduling and scheduling.gang else None


def group_size(snapshot: JobSnapshot, *, role: Role) -> int:
    """How many pods come together: those of the trainer, or those of one engine."""
    return snapshot.nodes_per_engine if role is Role.ROLLOUT else snapshot.spec.trainer.num_nodes


def pod_group(
    snapshot: JobSnapshot,
    scheduler: GangScheduler,
    *,
    name: str,
    role: Role,
    template: PodTemplateSpec | None,
) -> Child:
    """The PodGroup of the trainer pods of an attempt, or of those of an engine. `template` is what the job
    adds to them."""
    members = Members(group_size(snapshot, role=role), template)
    read_labels, read_annotations = (
        {name: value for name, value in given.items() if name.startswith(scheduler.prefixes)}
        for given in (members.labels, members.annotations)
    )
    metadata = snapshot.metadata(name, role=role, extra=read_labels)
    if read_annotations:
        metadata["annotations"] = read_annotations
    body = {
        "apiVersion": scheduler.kind.api_version,
        "kind": scheduler.kind.name,
        "metadata": metadata,
        "spec": scheduler.spec(members),
    }
    return Child(scheduler.kind, body)


def woken(group: Child, *, now: datetime) -> Child:
    """The same PodGroup with the time as an annotation: its scheduler tries all of its pods again when it
    changes."""
    metadata = group.body["metadata"]
    annotations = {**metadata.get("annotations", {}), labels.WOKEN_AT: f"{now:{WOKEN_AT_FORMAT}}"}
    body = {**group.body, "metadata": {**metadata, "annotations": annotations}}
    return replace(group, body=body, is_correction=True)
