"""The status of a GRPOJob: the state of the job and, after a failure, the cause."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, WithJsonSchema

from grpo_api.keyed_list import KeyedBy
from grpo_api.model import ApiModel
from grpo_api.text import ShortText

Message = Annotated[str, Field(max_length=4096)]


class Phase(StrEnum):
    """A summary of the conditions for people."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """The conditions of a job. The operator writes all of them when it first sees the job, but for
    MismatchHigh and NoLearningSignal, which are there only in a job in which they have been True."""

    READY = "Ready"
    RUNNING = "Running"
    ROLLOUT_READY = "RolloutReady"
    RESTARTING = "Restarting"
    COMPLETE = "Complete"
    FAILED = "Failed"
    FINISHED = "Finished"
    MISMATCH_HIGH = "MismatchHigh"
    NO_LEARNING_SIGNAL = "NoLearningSignal"


AnyConditionType = Annotated[
    ConditionType | Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9]*$", max_length=316)],
    Field(union_mode="left_to_right"),
    WithJsonSchema({"type": "string", "enum": [kind.value for kind in ConditionType]}),
]
"""A type of this release, or one of a newer release, which an older operator reads and writes as it is. The
CRD has those of its own release."""


class ConditionStatus(StrEnum):
    """The three values that every condition in Kubernetes has."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One aspect of the job's state, as in metav1.Condition."""

    type: AnyConditionType
    """Which aspect."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Annotated[str, Field(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=1024)]
    """Why, in one CamelCase word."""
    message: Message = ""
    """Why, in a sentence."""
    last_transition_time: datetime
    """When status last changed."""
    observed_generation: int
    """Generation of the spec this is about."""


class RoleStatus(ApiModel):
    """Pods of one role. The strings are what `kubectl get` prints."""

    desired: int = 0
    """Pods there should be."""
    ready: int = 0
    """Pods that are ready."""
    summary: ShortText = ""
    """READY/DESIRED."""


class RolloutStatus(RoleStatus):
    """The rollout pods, also as the target of `kubectl scale`."""

    replicas: int = 0
    """Rollout pods that exist."""
    current: int = 0
    """Engines that hold the newest weights."""
    selector: ShortText = ""
    """Label selector of the rollout pods, for an autoscaler."""


class LastFailure(ApiModel):
    """The newest failure or blocker and its cause. A failure ended an attempt or the job, a blocker keeps the
    job from going on. It stays when that is over, until there is something newer."""

    attempt: int = 0
    """Attempt in which it occurred."""
    role: ShortText
    """trainer or rollout; empty when it concerns no pod."""
    pod: ShortText
    """Pod that failed first or that is blocked, also one that could not be created; empty when it concerns no
    pod."""
    node: ShortText = ""
    """Node it ran on."""
    container: ShortText = ""
    """Container that failed."""
    reason: ShortText
    """The cause in one CamelCase word, such as OOMKilled."""
    exit_code: int | None = None
    """Exit code of the container, if there is one."""
    message: Message = ""
    """The cause in a sentence."""


class ErrorSignature(ApiModel):
    """What is the same about a Python error each time that a program makes it."""

    type: ShortText
    """Its type."""
    where: ShortText
    """MODULE.FUNCTION:LINE of the innermost frame that is not of a library."""
    step: Annotated[int, Field(ge=0, le=2**53 - 1)] | None = None
    """The step that was being made; absent before the first."""


class WaitingForRoom(ApiModel):
    """How an attempt waits for nodes."""

    since: datetime
    """Since when the attempt waits; `schedulingDeadlineSeconds` runs from here."""
    tried_at: datetime | None = None
    """Since when its pods are being made or wait for nodes; absent while something else must happen first."""
    held_back_until: datetime | None = None
    """Until when no pods are made, because those that had nodes gave them back to make room for others;
    absent while pods are made."""


class WeightSyncStatus(ApiModel):
    """How the weights of a run travel, as chosen when the job started."""

    backend: ShortText
    """The backend; never Auto."""
    reason: ShortText
    """Why it is that one, and with `weightSync.sparse` what is sent."""


class ResumedFrom(ApiModel):
    """The checkpoint of another job that a run begins with."""

    source: Annotated[str, Field(max_length=1024)]
    """Where that job's checkpoints are."""
    job: ShortText = ""
    """The job, where `resumeFrom` names one."""
    job_uid: ShortText = ""
    """Its uid: another job of that name is another one."""
    step: int | None = None
    """Step of the checkpoint; absent until the trainer has loaded it."""


class GRPOJobStatus(ApiModel):
    """Written by the operator only."""

    observed_generation: int = 0
    """Generation of the spec this status is about."""
    phase: Phase = Phase.PENDING
    """A summary for people."""
    mode: ShortText = ""
    """Where the engines run, as chosen when the job started."""
    mode_reason: ShortText = ""
    """Why it is that mode."""
    weight_sync: WeightSyncStatus | None = None
    """How the weights travel to the engines, as chosen when the job started; absent before that."""
    resumed_from: ResumedFrom | None = None
    """The checkpoint of `resumeFrom`; absent in a job without."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), KeyedBy("type")] = ()
    """The state of the job for machines; `kubectl wait --for=condition=Finished` ends with either
    outcome."""
    step: int = 0
    """Finished steps."""
    highest_step: int = 0
    """The most steps that any attempt has finished; 0 until one was finished."""
    total_steps: int = 0
    """Steps of the whole job; 0 until the trainer has counted the prompts of `algorithm.epochs`."""
    progress: ShortText = ""
    """STEP/TOTAL; the total is `?` until it is known."""
    reward: ShortText = ""
    """Mean reward of the last finished step; empty where it had none."""
    policy_version: ShortText = ""
    """ATTEMPT.STEP of the newest weights."""
    tokens_per_second: ShortText = ""
    """Generated tokens per second of the last step."""
    checkpoint_step: int | None = None
    """Step of the newest committed checkpoint."""
    checkpoint_seconds: int | None = None
    """How long the newest save took, once one took longer than a third of the usual grace period of 60 s.
    Trainer pods that are made from then on have three times as long to stop."""
    trainer: RoleStatus = RoleStatus()
    """The trainer pods."""
    rollout: RolloutStatus = RolloutStatus()
    """The rollout pods."""
    attempt: int = 0
    """Number of the running attempt, from 1."""
    restarts: int = 0
    """Restarts after failures, in total. Those since the newest progress, `failuresSinceProgress`, count
    against failurePolicy.maxRestarts."""
    disruptions: int = 0
    """Restarts that do not count, in total: evictions, preemptions, node losses."""
    failures_since_progress: int = 0
    """Restarts after failures since the job last made progress, which is a committed checkpoint beyond any
    before. failurePolicy.maxRestarts limits them."""
    disruptions_since_progress: int = 0
    """Restarts that do not count since the job last made progress. The more there are, the longer the next
    attempt waits, up to ten minutes."""
    highest_checkpoint_step: int | None = None
    """Step of the highest checkpoint that any attempt has committed to the claim. Without
    checkpoint.claimName it stays empty, because nothing is kept from one attempt to the next."""
    given_back: int = 0
    """How often the job gave its nodes back because not all the pods that it needs found one. No restart."""
    waiting_for_room: WaitingForRoom | None = None
    """How the attempt waits for nodes; absent once it has them."""
    micro_batch_tokens: int | None = None
    """Most tokens of a micro-batch from now on, half of what the spec says, because an attempt ran out of GPU
    memory after it had made a step; absent before that."""
    starting_since: datetime | None = None
    """From when `startupDeadlineSeconds` runs: when the attempt first had room, later by the times in which
    it had to wait for room again and in which its checkpoint was read. Absent before that."""
    last_failure: LastFailure | None = None
    """The newest failure or blocker and its cause; it stays until there is something newer."""
    last_error: ErrorSignature | None = None
    """The Python error that ended the attempt before this one: the same one again fails the job. Absent where
    it ended otherwise, or by an error that may pass."""
    notes: Annotated[str, Field(max_length=1024)] = ""
    """What must be known beside the conditions: that changes to the spec are not followed, or that the CRD is
    older than the operator. Ready's message ends with it."""
    revision: ShortText = ""
    """Hash of everything that was recorded when the job started."""
    config_digest: ShortText = ""
    """SHA-256 of the ConfigMap of the revision. From another one no pod is made."""
    image: Annotated[str, Field(max_length=512)] = ""
    """Runtime image, recorded when the job started."""
    image_id: Annotated[str, Field(max_length=512)] = ""
    """What its node calls the image that the first trainer pod ran. Where that is a digest in the repository
    of `image`, later pods get the image by it; else a pod that runs another image under the same name is not
    used."""
    start_time: datetime | None = None
    """When the first pods were created."""
    completion_time: datetime | None = None
    """When the job ended."""

    @property
    def is_held_back(self) -> bool:
        """Whether the job has given its nodes back and does not make its pods again yet."""
        return self.waiting_for_room is not None and self.waiting_for_room.held_back_until is not None
