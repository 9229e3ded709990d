"""What a trainer reports on GET /progress, and what the operator folds into status."""

from enum import StrEnum

from pydantic import Field

from grpo_api.contract.versions import SCHEMA_VERSION
from grpo_api.model import ApiModel


class TrainerState(StrEnum):
    """What the trainer is doing right now."""

    STARTING = "Starting"
    WAITING_FOR_ROLLOUT = "WaitingForRollout"
    TRAINING = "Training"
    STOPPING = "Stopping"
    DONE = "Done"


class EngineCounts(ApiModel):
    """Rollout engines as the trainer sees them."""

    desired: int = 0
    """Engines the run was planned with."""
    known: int = 0
    """Engines found, in any state."""
    current: int = 0
    """Engines that hold the newest weights, verified, and get work."""


class Progress(ApiModel):
    """One snapshot of a trainer. `heartbeat` grows with every sign of life, also within a step.

    Durations are in seconds; `reward` is the mean reward of the last finished step.
    """

    schema_version: int = SCHEMA_VERSION
    job_uid: str
    attempt: int = Field(ge=1)
    state: TrainerState = TrainerState.STARTING
    step: int = 0
    """Finished optimizer steps."""
    total_steps: int
    heartbeat: int = 0
    reward: float | None = None
    policy_version: str = ""
    tokens_per_second: float | None = None
    stale_samples: int = 0
    """Samples trained on although older than allowed. Stays 0."""
    checkpoint_step: int | None = None
    """Step of the newest committed checkpoint."""
    resumed_from_step: int | None = None
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
