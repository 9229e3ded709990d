"""`rollout`: the rollout pods; only in mode Disaggregated."""

from typing import Annotated

from pydantic import Field

from grpo_api.changes import MAY_CHANGE, Transition
from grpo_api.model import ApiModel
from grpo_api.v1alpha1.spec.resources import ResourcesSpec


class RolloutSpec(ApiModel):
    """The rollout pods, and how many of them run one vLLM engine."""

    replicas: Annotated[int, Field(ge=1, le=1024), MAY_CHANGE] = 1
    """Engines; may be changed while the job runs, also through kubectl scale."""
    nodes_per_replica: Annotated[int, Field(ge=1, le=64)] | None = None
    """Pods of one engine, which share out its workers evenly; without it one. They start together, and are
    replaced together when one of them ends. For an engine that needs the GPUs of more than one node."""
    resources: ResourcesSpec = ResourcesSpec()
    """Resources of each rollout pod."""
    lost_timeout_seconds: Annotated[int, Field(ge=1, le=604_800)] = 900
    """How long training waits while there is no engine at all, before the attempt fails."""

    @property
    def num_nodes(self) -> int:
        """Pods of one engine."""
        return self.nodes_per_replica or 1


ROLLOUT_STAYS = Transition(
    "has(self.rollout) == has(oldSelf.rollout)",
    "spec.rollout can be neither added nor removed once the job exists, also not by kubectl scale, for it "
    "decides where the engines run: create a new job",
    field=".rollout",
)
"""Rollout pods can be neither introduced nor given up; only their number may change."""
