"""`rollout`: the rollout pods; only in mode Disaggregated."""

from typing import Annotated

from pydantic import Field

from grpo_api.changes import MAY_CHANGE, Transition
from grpo_api.model import ApiModel
from grpo_api.v1alpha1.spec.resources import ResourcesSpec


class RolloutSpec(ApiModel):
    """The rollout pods, one vLLM engine each."""

    replicas: Annotated[int, Field(ge=1, le=1024), MAY_CHANGE] = 1
    """Engines; may be changed while the job runs, also through kubectl scale."""
    resources: ResourcesSpec = ResourcesSpec()
    """Resources of each rollout pod."""
    lost_timeout_seconds: Annotated[int, Field(ge=1, le=604_800)] = 900
    """How long training waits while there is no engine at all, before the attempt fails."""


ROLLOUT_STAYS = Transition(
    "has(self.rollout) == has(oldSelf.rollout)",
    "spec.rollout can be neither added nor removed once the job exists, also not by kubectl scale, for it "
    "decides where the engines run: create a new job",
    field=".rollout",
)
"""Rollout pods can be neither introduced nor given up; only their number may change."""
