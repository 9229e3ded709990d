"""`checkpoint`: when to save and where."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.fields import ClaimName


@rule(
    cel="!has(self.shared) || !self.shared || has(self.claimName)",
    sentence="checkpoint.shared says that all trainer pods may mount the claim, and there is none: name it "
    "in checkpoint.claimName, or remove checkpoint.shared",
    field=".shared",
)
def shared_claim_is_named(shared: bool, claim_name: str | None) -> bool:
    """Scratch space is not shared between pods."""
    return not shared or claim_name is not None


@rule(
    cel="!has(self.journal) || !self.journal || has(self.claimName)",
    sentence="checkpoint.journal needs checkpoint.claimName, because it is read by the next attempt: name a "
    "claim, or remove checkpoint.journal",
    field=".journal",
)
def journal_has_a_claim(journal: bool | None, claim_name: str | None) -> bool:
    """Without a claim the journal would be lost with the pod."""
    return not journal or claim_name is not None


class CheckpointSpec(ApiModel):
    """When to save and where."""

    rules = (shared_claim_is_named, journal_has_a_claim)

    every_steps: Annotated[int, Field(ge=1, le=10_000_000)] = 50
    """Save after this many steps, and at the end."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 2
    """Newest checkpoints to keep."""
    claim_name: ClaimName | None = None
    """PersistentVolumeClaim for checkpoints and metrics. Without it they are lost with the pod, and a new
    attempt starts from step 0."""
    shared: Annotated[bool, NOT_STORED] = False
    """Every trainer pod mounts the claim, and each training process writes its share of a checkpoint. With
    several trainer pods the claim must be ReadWriteMany, which the operator has no right to look up. Without
    it the first process is sent everything and writes alone."""
    journal: bool | None = None
    """Whether samples and rewards are written to the claim as they finish, so that a new attempt goes on from
    the last sample and not from the last checkpoint. Left out, they are where there is a claimName, and by
    `grpo-runtime run` also without one."""
