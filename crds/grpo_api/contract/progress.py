"""What a trainer reports: on GET /progress while it runs, and in its termination message."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field

from grpo_api.contract.learning_signal import StepsWithoutSignal
from grpo_api.contract.left_out import LeftOutEnvironment
from grpo_api.contract.mismatch import Mismatch
from grpo_api.contract.versions import SCHEMA_VERSION
from grpo_api.model import ApiModel
from grpo_api.v1alpha1.spec.environments import MOST_ENVIRONMENTS
from grpo_api.v1alpha1.status import ErrorSignature, ShortText

Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
"""A number that every JSON parser reads exactly."""
Rate = Annotated[float, Field(ge=0, le=1e12)]


class TrainerState(StrEnum):
    """What the trainer does at the moment."""

    STARTING = "Starting"
    WAITING_FOR_ROLLOUT = "WaitingForRollout"
    TRAINING = "Training"
    STOPPING = "Stopping"
    DONE = "Done"


HUNG_REPORTED_AFTER_SECONDS = 60.0
"""How long an engine must be hung before the trainer reports it by name. One that is only slow continues
sooner."""
MAX_HUNG_REPORTED = 16
"""How many engines a report names at most, those that have been hung for longest: a report is bounded."""


class HungEngine(ApiModel):
    """An engine that is hung, or whose weight syncs time out, since `since`."""

    name: ShortText
    """Its name, in a cluster that of its pod; for a multi-pod engine, its first pod."""
    instance: ShortText
    """Which process it is: another one has its name once it has been restarted."""
    since: datetime
    """When it was found to be hung, on the trainer's clock; it has not worked since."""
    why: ShortText
    """Which part of it is hung, as a sentence about it."""


MAX_ENGINE_NOTES = 16
"""Most engines a report has notes on: a report is bounded."""
LONGEST_ENGINE_NAME = 253
LONGEST_ENGINE_NOTE = 1024
"""Most characters of a note."""


class EngineNote(ApiModel):
    """What the trainer reports about one engine: that it gets no weights, is hung or is started again."""

    name: ShortText
    """Its name, which in a cluster is that of its pod."""
    text: Annotated[str, Field(max_length=LONGEST_ENGINE_NOTE)]
    """A sentence, with the name."""


class EngineCounts(ApiModel):
    """Rollout engines as the trainer sees them."""

    desired: Count = 0
    """Engines that the job asks for at its start."""
    known: Count = 0
    """Engines that have answered the trainer and are not lost."""
    current: Count = 0
    """Engines that hold the newest weights, verified, and are given prompts."""
    hung: Annotated[tuple[HungEngine, ...], Field(max_length=MAX_HUNG_REPORTED)] | None = None
    """Engines that have been hung for `HUNG_REPORTED_AFTER_SECONDS`, the longest first; None while none
    has."""
    notes: Annotated[tuple[EngineNote, ...], Field(max_length=MAX_ENGINE_NOTES)] | None = None
    """Notes on single engines, the worst first; None while there are none."""

    def notes_on(self, engine: str) -> str:
        """The notes on this engine, as one text; empty without any."""
        return "; ".join(note.text for note in self.notes or () if note.name == engine)


STALENESS, QUEUED, RUNNING = "async/staleness", "async/queued_groups", "async/running_groups"
"""Metrics of a step of asynchronous training that a report has too; of staleness there are `mean` and
`max`."""


class AsyncProgress(ApiModel):
    """How far sampling is ahead of training, in a run with `async`."""

    mean_staleness: Rate
    """Mean age of the completions that the last finished step was trained on, in steps."""
    max_staleness: Count
    """Age of the oldest of them."""
    num_queued: Count
    """Prompts with all their completions, scored and not trained yet, when that step had taken its own."""
    num_running: Count
    """Prompts whose completions were being sampled or scored then."""

    @classmethod
    def of_metrics(cls, values: Mapping[str, float]) -> Self | None:
        """What the metrics of a step say; None in a run without `async`."""
        if f"{STALENESS}/mean" not in values:
            return None
        return cls(
            mean_staleness=values[f"{STALENESS}/mean"],
            max_staleness=int(values[f"{STALENESS}/max"]),
            num_queued=int(values[QUEUED]),
            num_running=int(values[RUNNING]),
        )


class BestEvaluation(ApiModel):
    """The evaluation with the greatest mean reward whose checkpoint is kept."""

    step: Count
    """After how many steps it was made."""
    reward: float
    """Its mean reward; it may be any number."""


class Progress(ApiModel):
    """The state of a trainer at one moment. Its values have the bounds of the status fields they go to. An
    operator leaves out fields that it does not know."""

    schema_version: int = SCHEMA_VERSION
    job_uid: ShortText
    attempt: Annotated[Count, Field(ge=1)]
    state: TrainerState = TrainerState.STARTING
    step: Count = 0
    """Finished optimizer steps."""
    total_steps: Count
    """0 while the trainer has not counted the prompts of `algorithm.epochs`."""
    heartbeat: Count = 0
    """Rises whenever the trainer does something, including every micro-batch; while completions are sampled,
    only when one is finished, and while a checkpoint is read, only with its bytes. The operator calls a
    trainer stalled when it stays the same for stallTimeoutSeconds."""
    reward: float | None = None
    """Mean reward of the last finished step; it may be any number."""
    policy_version: ShortText = ""
    tokens_per_second: Rate | None = None
    checkpoint_step: Count | None = None
    """Step of the newest committed checkpoint."""
    checkpoint_seconds: Count | None = None
    """How long its save took, rounded up. None until a save needs a longer grace period than pods have
    anyway."""
    best_evaluation: BestEvaluation | None = None
    """None before one, and in a run without `dataset.eval`."""
    resumed_from_step: Count | None = None
    """Step that the attempt began after: that of its checkpoint."""
    loaded_step: Count | None = None
    """Step of the checkpoint of another job that the attempt began with, as `resumeFrom` says, whatever was
    loaded of it; None where it began with one of its own, or with none."""
    set_aside: str | None = None
    """Which newer checkpoints were damaged and put aside as the attempt began, as a sentence; None where none
    was."""
    mismatch: Mismatch | None = None
    """How much trainer and engines disagree about the sampled tokens; None while they agree."""
    steps_without_signal: StepsWithoutSignal | None = None
    """The newest steps in a row that taught nothing; None where the newest one did."""
    left_out: Annotated[tuple[LeftOutEnvironment, ...], Field(max_length=MOST_ENVIRONMENTS)] | None = None
    """Environments all of whose newest groups were left out; None while there is none."""
    asynchronous: Annotated[AsyncProgress | None, Field(alias="async")] = None
    """How far sampling is ahead; None in a run without `async`, and before the first step."""
    engines: EngineCounts = EngineCounts()
    message: str = ""
    """What the trainer waits for, as a sentence, also while it trains and no completion has been finished for
    some seconds; and which engines get no weights, and why. Empty otherwise."""

    @property
    def no_learning_signal(self) -> StepsWithoutSignal | None:
        """The newest steps that taught nothing, where they are enough to be reported."""
        found = self.steps_without_signal
        return found if found is not None and found.is_reported(total_steps=self.total_steps) else None


class TerminationMessage(ApiModel):
    """What process 1 of a pod writes to /dev/termination-log, as JSON of at most 4,096 bytes."""

    schema_version: int = SCHEMA_VERSION
    reason: str
    message: str
    exit_code: int
    rank: int | None = None
    """Local rank of the process that failed first."""
    error: ErrorSignature | None = None
    """The Python error that ended the process, unless it is one that may pass."""
    is_effect: bool = False
    """Whether the process ended because another one is gone or does not answer: whatever ended that one is
    the cause."""
    progress: Progress | None = None
    """Left out when the message would become too long."""
