"""`rollout`: the rollout pods; only in mode Disaggregated."""

from typing import Annotated

from pydantic import Field

from grpo_api import cel
from grpo_api.changes import MAY_CHANGE, Transition
from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.pod_template import PodTemplateSpec
from grpo_api.v1alpha1.spec.resources import ResourcesSpec


@rule(
    cel=f"!has(self.nodesPerReplica) || self.nodesPerReplica == 1 || !{cel.has_host_network('self')}",
    sentence="rollout.nodesPerReplica must be 1 with podTemplate.spec.hostNetwork, because vLLM's "
    "channels between the pods of an engine ask for no token, and NetworkPolicies do not hold "
    "on the network of a node: remove one of them",
    field=".nodesPerReplica",
)
def channels_are_guarded(nodes_per_replica: int, pod_template: PodTemplateSpec | None) -> bool:
    """A client that reaches those channels can run code in the pods."""
    return nodes_per_replica == 1 or pod_template is None or not pod_template.has_host_network


class RolloutSpec(ApiModel):
    """The rollout pods, and how many of them run one vLLM engine."""

    rules = (channels_are_guarded,)

    replicas: Annotated[int, Field(ge=1, le=1024), MAY_CHANGE] = 1
    """How many engines there are. May be changed while the job runs, also with `kubectl scale`."""
    min_replicas: Annotated[int, Field(ge=1, le=1024)] | None = None
    """With this many engines Kueue may admit a job with `queueName` where it has no quota for all. The others
    follow one by one."""
    nodes_per_replica: Annotated[int, Field(ge=1, le=64), NOT_STORED] = 1
    """How many pods make up one engine, for one that needs the GPUs of several nodes. They divide its workers
    evenly, start together, and are replaced together when one of them ends. Defaults to 1."""
    resources: ResourcesSpec = ResourcesSpec()
    """Resources of each rollout pod."""
    lost_timeout_seconds: Annotated[int, Field(ge=1, le=604_800)] = 900
    """How long training waits while there is no engine at all. After that the attempt fails."""
    pod_template: PodTemplateSpec | None = None
    """What is added to the rollout pods: placement, variables, volumes. `grpo-runtime run` has no pods and
    ignores it."""

    @property
    def has_gpus(self) -> bool:
        """Whether the engines have GPUs."""
        return self.resources.num_gpus > 0 or (self.pod_template is not None and self.pod_template.has_claims)


ROLLOUT_STAYS = Transition(
    "has(self.rollout) == has(oldSelf.rollout)",
    "spec.rollout cannot be added or removed once the job exists, not even by kubectl scale, because "
    "it decides where the engines run: create a new job",
    field=".rollout",
)
"""Rollout pods can be neither introduced nor given up; only their number may change."""
