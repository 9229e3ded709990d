"""What a trainer reports on GET /progress, and what the operator folds into status."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.contract.versions import SCHEMA_VERSION
from grpo_api.model import ApiModel

Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
"""What every reader of JSON holds exactly."""
Word = Annotated[str, Field(max_length=253)]
"""As long as the status may hold."""
Rate = Annotated[float, Field(ge=0, le=1e12)]


class TrainerState(StrEnum):
    """What the trainer is doing right now."""

    STARTING = "Starting"
    WAITING_FOR_ROLLOUT = "WaitingForRollout"
    TRAINING = "Training"
    STOPPING = "Stopping"
    DONE = "Done"


class EngineCounts(ApiModel):
    """Rollout engines as the trainer sees them."""

    desired: Count = 0
    """Engines the run was planned with."""
    known: Count = 0
    """Engines found, in any state."""
    current: Count = 0
    """Engines that hold the newest weights, verified, and get work."""


class Progress(ApiModel):
    """One snapshot of a trainer. `heartbeat` grows with every sign of life, also within a step.

    Durations are in seconds; `reward` is the mean reward of the last finished step, and may be any number.
    What else goes into the status is bounded as that is.
    """

    schema_version: int = SCHEMA_VERSION
    job_uid: Word
    attempt: Annotated[Count, Field(ge=1)]
    state: TrainerState = TrainerState.STARTING
    step: Count = 0
    """Finished optimizer steps."""
    total_steps: Count
    heartbeat: Count = 0
    reward: float | None = None
    policy_version: Word = ""
    tokens_per_second: Rate | None = None
    stale_samples: Count = 0
    """Samples trained on although older than allowed. Stays 0."""
    checkpoint_step: Count | None = None
    """Step of the newest committed checkpoint."""
    resumed_from_step: Count | None = None
    engines: EngineCounts = EngineCounts()
    message: str = ""
    """What the trainer waits for, for people; empty while training."""


class TerminationMessage(ApiModel):
    """What process 1 of a pod leaves in /dev/termination-log, at most 4,096 bytes as JSON.

    `rank` is the local rank that failed first.
    """

    schema_version: int = SCHEMA_VERSION
    reason: str
    message: str
    exit_code: int
    rank: int | None = None
    progress: Progress | None = None
    """Left out where the message would be too long."""
