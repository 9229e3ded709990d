"""`scheduling`: which pods get their nodes together, and how near to each other these nodes are."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.rule import Follows, TextRule, rule
from grpo_api.v1alpha1.spec.fields import ClaimName
from grpo_api.v1alpha1.spec.rollout import RolloutSpec

TopologyLabel = Annotated[
    str,
    Field(max_length=317),
    Follows(
        TextRule(
            r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
            "must be the name of a label of nodes: write it as kubectl shows it, such as "
            "topology.kubernetes.io/zone",
        )
    ),
]
"""A label of nodes. Nodes with the same value of it are near each other."""


class Gang(StrEnum):
    """What brings the pods of a group to their nodes together."""

    COSCHEDULING = "Coscheduling"
    VOLCANO = "Volcano"
    KAI = "KAI"
    NATIVE = "Native"


@rule(
    cel="has(self.required) != has(self.preferred)",
    sentence="a topology needs exactly one of required and preferred: name the label of nodes under one of "
    "them",
)
def topology_is_required_or_preferred(required: str | None, preferred: str | None) -> bool:
    """A scheduler holds to a label or tries to."""
    return (required is None) != (preferred is None)


class PodTopologySpec(ApiModel):
    """How near to each other the pods of a group are."""

    rules = (topology_is_required_or_preferred,)

    required: TopologyLabel | None = None
    """Label of nodes of which all nodes of the group have the same value. Without such nodes the pods
    wait."""
    preferred: TopologyLabel | None = None
    """Label of nodes of which the nodes of the group have the same value where there is room for that.
    Otherwise the pods go elsewhere."""


class TopologySpec(ApiModel):
    """How near to each other the nodes of each group of pods are. It becomes a pod affinity, and on pods of
    Kueue its annotation."""

    trainer: PodTopologySpec | None = None
    """The trainer pods, where there are several."""
    engine: PodTopologySpec | None = None
    """The pods of each engine, where there are several. Two engines need not be near each other."""


class SchedulingSpec(ApiModel):
    """How the pods come to their nodes. `grpo-runtime run` has no pods and ignores it."""

    gang: Gang | None = None
    """What gives all trainer pods their nodes together or none, and likewise the pods of each engine of
    several pods: `Coscheduling`, a plugin of the scheduler; the scheduler `Volcano` or `KAI`; or `Native`,
    which Kubernetes 1.37 has itself. The operator must allow it, with `gangs` of its chart. Without it each
    pod gets its node by itself."""
    topology: TopologySpec | None = None
    """How near to each other these nodes are."""
    priority_class: ClaimName | None = None
    """WorkloadPriorityClass of Kueue for a job with `queueName`; the label `kueue.x-k8s.io/priority-class` of
    the job says the same."""


# About the whole spec


@rule(
    cel="!has(self.scheduling) || !has(self.scheduling.topology) || !has(self.scheduling.topology.engine) || "
    "has(self.rollout)",
    sentence="scheduling.topology.engine is about rollout pods, and engines of mode Colocated are in the "
    "trainer pods: use scheduling.topology.trainer",
    field=".scheduling.topology.engine",
)
def engine_topology_has_pods(scheduling: SchedulingSpec | None, rollout: RolloutSpec | None) -> bool:
    """No section that says nothing."""
    topology = scheduling.topology if scheduling is not None else None
    return rollout is not None or topology is None or topology.engine is None
