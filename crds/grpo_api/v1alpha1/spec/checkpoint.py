"""`checkpoint` and `resumeFrom`: when to save and where, and another job's checkpoint to begin with."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.source import CheckpointSource
from grpo_api.v1alpha1.spec.fields import ClaimName, JobName


@rule(
    cel="!has(self.shared) || !self.shared || has(self.claimName)",
    sentence="checkpoint.shared lets all trainer pods mount the claim, and there is none: name it in "
    "checkpoint.claimName, or remove checkpoint.shared",
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
    """Save a checkpoint after every so many steps, and at the end."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 2
    """How many of the newest checkpoints to keep."""
    claim_name: ClaimName | None = None
    """PersistentVolumeClaim for the output directory, with checkpoints, metrics and the trained model. Each
    job has a folder of its own there. Without it they are lost with the pod, and a new attempt starts from
    step 0."""
    shared: Annotated[bool, NOT_STORED] = False
    """Every trainer pod mounts the claim, and each training process writes its shard of a checkpoint. With
    several trainer pods the claim must be ReadWriteMany; the operator cannot check that. Without it the first
    process is sent everything and writes it alone."""
    journal: bool | None = None
    """Write samples and rewards to the claim as they finish, so that a new attempt continues from the last
    sample and not from the last checkpoint. Defaults to true where there is a claimName; `grpo-runtime run`
    does it without one too."""


class ResumeLoad(StrEnum):
    """What is taken from a checkpoint of another job."""

    CHECKPOINT = "Checkpoint"
    WEIGHTS = "Weights"


@rule(
    cel="has(self.job) != has(self.source)",
    sentence="resumeFrom needs exactly one of job and source: name the job whose checkpoint to take, or the "
    "directory of one as pvc://CLAIM/PATH",
)
def checkpoint_has_one_source(job: str | None, source: str | None) -> bool:
    """A job already says where its checkpoints are."""
    return (job is None) != (source is None)


class ResumeFromSpec(ApiModel):
    """A checkpoint of another job to begin with."""

    rules = (checkpoint_has_one_source,)

    job: JobName | None = None
    """GRPOJob in this namespace. This job waits until that one has ended, and then reads the claim in its
    checkpoint.claimName. Once this job has started, that one may be deleted, but not its claim."""
    source: CheckpointSource | None = None
    """Directory of checkpoints that nothing writes to any more: `pvc://CLAIM/PATH` on a
    PersistentVolumeClaim, or `file:///PATH` in the image. It is the output directory of a job, its
    `checkpoints`, or a single checkpoint."""
    load: Annotated[ResumeLoad, NOT_STORED] = ResumeLoad.CHECKPOINT
    """`Checkpoint` (the default) continues where the other job stopped: with its weights, its optimizer, its
    step and its position in the data; algorithm.steps then counts the steps of both jobs. `Weights` takes the
    weights alone and begins at step 0."""
    step: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Step of the checkpoint. Defaults to the newest one that is intact."""

    def with_source(self, source: str) -> Self:
        """This section with the directory of the checkpoints instead of the job that wrote them."""
        return self.model_copy(update={"job": None, "source": source})
