"""`resumeFrom`: begin with a checkpoint of another job."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.source import CheckpointSource
from grpo_api.v1alpha1.spec.fields import JobName


class ResumeLoad(StrEnum):
    """What is taken from a checkpoint of another job."""

    CHECKPOINT = "Checkpoint"
    WEIGHTS = "Weights"


@rule(
    cel="has(self.job) != has(self.source)",
    sentence="resumeFrom needs exactly one of job and source: name the job whose checkpoint to take, or the "
    "place of one as pvc://CLAIM/PATH",
)
def checkpoint_has_one_place(job: str | None, source: str | None) -> bool:
    """A job already says where its checkpoints are."""
    return (job is None) != (source is None)


class ResumeFromSpec(ApiModel):
    """A checkpoint of another job to begin with."""

    rules = (checkpoint_has_one_place,)

    job: JobName | None = None
    """GRPOJob of this namespace. This job waits until that one has ended, and then reads the claim of its
    checkpoint.claimName. Once this job has started, that one may be deleted, but not its claim."""
    source: CheckpointSource | None = None
    """`pvc://CLAIM/PATH` is a directory on a PersistentVolumeClaim, `file:///PATH` one in the image: the
    output directory of a job, its `checkpoints`, or a single checkpoint. Nothing must write there any
    more."""
    load: Annotated[ResumeLoad, NOT_STORED] = ResumeLoad.CHECKPOINT
    """`Checkpoint`, which is meant without it, goes on where the other job stopped: with its weights, its
    optimizer, its step and its position in the data. algorithm.steps counts those of both. `Weights` takes
    the weights alone and begins at step 0."""
    step: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Step of the checkpoint; without it the newest that is whole."""

    def found_at(self, source: str) -> Self:
        """The same with the place of the checkpoints in place of the job that wrote them."""
        return self.model_copy(update={"job": None, "source": source})
