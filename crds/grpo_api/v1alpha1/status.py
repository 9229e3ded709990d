"""The status of a GRPOJob: the state of the job and, after a failure, the cause."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, WithJsonSchema

from grpo_api.model import ApiModel
from grpo_api.rule import KeyedBy

ShortText = Annotated[str, Field(max_length=253)]
"""A name, a reason or a few words."""
Message = Annotated[str, Field(max_length=4096)]
"""A sentence, or a few."""


class Phase(StrEnum):
    """A summary of the conditions for people."""

    PENDING = "Pending"
    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """The conditions of a job. The operator writes all of them when it first sees the job, but for
    MismatchHigh, NoLearningSignal, EnvironmentFailing and Stalled, which are there only in a job in which
    they have been True, and Suspended, which is there only in a job that has been suspended."""

    READY = "Ready"
    RUNNING = "Running"
    ROLLOUT_READY = "RolloutReady"
    RESTARTING = "Restarting"
    COMPLETE = "Complete"
    FAILED = "Failed"
    FINISHED = "Finished"
    MISMATCH_HIGH = "MismatchHigh"
    NO_LEARNING_SIGNAL = "NoLearningSignal"
    ENVIRONMENT_FAILING = "EnvironmentFailing"
    SUSPENDED = "Suspended"
    STALLED = "Stalled"


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
    """Which aspect of the job's state this is about."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Annotated[str, Field(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=1024)]
    """The cause in one CamelCase word."""
    message: Message = ""
    """The cause in a sentence."""
    last_transition_time: datetime
    """When status last changed."""
    observed_generation: int
    """Generation of the spec that this is about."""


class RoleStatus(ApiModel):
    """Pods of one role. The strings are what `kubectl get` prints."""

    desired: int = 0
    """How many pods there should be."""
    ready: int = 0
    """How many pods are ready."""
    summary: ShortText = ""
    """READY/DESIRED, as `kubectl get` prints it."""


class RolloutStatus(RoleStatus):
    """The rollout pods, also as the target of `kubectl scale`."""

    replicas: int = 0
    """How many rollout pods exist."""
    current: int = 0
    """How many engines have the newest weights."""
    selector: ShortText = ""
    """Label selector of the rollout pods, for an autoscaler."""


class LastFailure(ApiModel):
    """The newest failure or blocker and its cause. A failure ended an attempt or the job, a blocker keeps the
    job from continuing. It stays when that is over, until there is something newer."""

    attempt: int = 0
    """Attempt in which it occurred."""
    role: ShortText
    """`trainer` or `rollout`. Empty when it concerns no pod."""
    pod: ShortText
    """Pod that failed first or that is blocked, even if it could not be created. Empty when it concerns no
    pod."""
    node: ShortText = ""
    """Node that the pod ran on."""
    container: ShortText = ""
    """Container that failed."""
    reason: ShortText
    """The cause in one CamelCase word, such as OOMKilled."""
    exit_code: int | None = None
    """Exit code of the container, if it has one."""
    message: Message = ""
    """The cause in a sentence."""


class ErrorSignature(ApiModel):
    """What identifies a Python error: the same each time that a program makes it."""

    type: ShortText
    """Type of the error."""
    where: ShortText
    """MODULE.FUNCTION:LINE of the innermost frame that is not in a library."""
    step: Annotated[int, Field(ge=0, le=2**53 - 1)] | None = None
    """Step in which the error was raised. Absent before the first step."""


class WaitingForRoom(ApiModel):
    """How an attempt waits for nodes."""

    since: datetime
    """Since when the attempt waits. `schedulingDeadlineSeconds` counts from here."""
    tried_at: datetime | None = None
    """Since when its pods are being created or wait for nodes. Absent while something else must happen
    first."""
    held_back_until: datetime | None = None
    """Until when no pods are created, because those that had nodes gave them back to make room for others.
    Absent while pods are created."""


class Suspension(ApiModel):
    """How a job is suspended, or was the last time."""

    since: datetime
    """When it began."""
    until: datetime | None = None
    """When it ended. Absent while it lasts."""
    reason: ShortText
    """The cause in one CamelCase word."""
    message: Message = ""
    """The cause in a sentence."""
    spec_suspend: bool | None = None
    """`spec.suspend` when a rule suspended the job. Another value ends that."""


class Stopping(ApiModel):
    """That the job fails once its pods have ended, and why."""

    since: datetime
    """When that was decided."""
    reason: ShortText
    """The cause in one CamelCase word."""
    message: Message = ""
    """The cause in a sentence."""


class QueueStatus(ApiModel):
    """How Kueue knows the job."""

    name: ShortText
    """The LocalQueue. A job that has begun changes it only while it is suspended."""
    workload: ShortText
    """The Workload of the job, of its trainer and its first engines."""


class WeightSyncStatus(ApiModel):
    """How the weights of a run travel, as chosen when the job started."""

    backend: ShortText
    """The backend. It is never Auto."""
    reason: ShortText
    """Why it is this backend, and with `weightSync.sparse` what is sent."""


class AsyncStatus(ApiModel):
    """How far sampling is ahead of training, as of the last finished step."""

    mean_staleness: ShortText
    """Mean age of the completions that the step was trained on, in steps. The age is the number of steps that
    were trained since the weights which sampled the first token."""
    max_staleness: int
    """Age of the oldest of them. It is never more than `async.maxStaleness`."""
    num_queued: int
    """How many prompts had all their completions, and waited for a later step."""
    num_running: int
    """How many prompts had completions that were being sampled or scored."""


class ResumedFrom(ApiModel):
    """The checkpoint of another job that a run begins with."""

    source: Annotated[str, Field(max_length=1024)]
    """Where that job's checkpoints are."""
    job: ShortText = ""
    """The job, where `resumeFrom` names one."""
    job_uid: ShortText = ""
    """Uid of that job. A later job of the same name has another."""
    step: int | None = None
    """Step of the checkpoint. Absent until the trainer has loaded it."""


class GRPOJobStatus(ApiModel):
    """What the operator reports of the job. Nothing else writes it."""

    observed_generation: int = 0
    """Generation of the spec that this status is about. -1 until an operator has seen the job."""
    phase: Phase = Phase.PENDING
    """A summary of the conditions for people."""
    mode: ShortText = ""
    """Mode of the job, Disaggregated or Colocated, as chosen when it started."""
    mode_reason: ShortText = ""
    """Why the job has this mode."""
    weight_sync: WeightSyncStatus | None = None
    """How the weights travel to the engines, as chosen when the job started. Absent before that."""
    resumed_from: ResumedFrom | None = None
    """The checkpoint of another job that the run begins with. Absent without `resumeFrom`."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), KeyedBy("type")] = ()
    """The state of the job for machines. `kubectl wait --for=condition=Finished` returns once the job has
    succeeded or failed."""
    step: int = 0
    """How many steps are finished."""
    highest_step: int = 0
    """The most steps that any attempt has finished. 0 until one is finished."""
    total_steps: int = 0
    """How many steps the whole job has. 0 until the trainer has counted the prompts for
    `algorithm.epochs`."""
    progress: ShortText = ""
    """STEP/TOTAL. The total is `?` until it is known."""
    reward: ShortText = ""
    """Mean reward of the last finished step. Empty when that step had none."""
    policy_version: ShortText = ""
    """ATTEMPT.STEP of the newest weights."""
    tokens_per_second: ShortText = ""
    """Generated tokens per second of the last step."""
    asynchronous: Annotated[AsyncStatus | None, Field(alias="async")] = None
    """How far sampling is ahead of training. Absent without `async`, and before the first step."""
    checkpoint_step: int | None = None
    """Step of the newest committed checkpoint."""
    checkpoint_seconds: int | None = None
    """How long the newest save took, once a save has taken longer than a third of the usual grace period of
    60 s. Trainer pods that are created from then on have three times as long to stop."""
    best_step: int | None = None
    """Step of the best evaluation, whose checkpoint is kept."""
    trainer: RoleStatus = RoleStatus()
    """The trainer pods."""
    rollout: RolloutStatus = RolloutStatus()
    """The rollout pods."""
    attempt: int = 0
    """Number of the current attempt, from 1."""
    restarts: int = 0
    """How many times the job was restarted after a failure, in total. failurePolicy.maxRestarts limits
    `failuresSinceProgress` and not this."""
    disruptions: int = 0
    """How many times the job was restarted after a disruption, in total: evictions, preemptions and node
    losses, which do not count against failurePolicy.maxRestarts, and what a rule ignores."""
    failures_since_progress: int = 0
    """Restarts after failures since the job last made progress. Progress is a committed checkpoint of a
    higher step than any before. failurePolicy.maxRestarts limits this number."""
    disruptions_since_progress: int = 0
    """Restarts after disruptions since the job last made progress. The more there are, the longer the next
    attempt waits, up to ten minutes."""
    highest_checkpoint_step: int | None = None
    """Step of the highest checkpoint that any attempt has committed to the claim. Absent without
    checkpoint.claimName, because nothing is kept from one attempt to the next."""
    suspension: Suspension | None = None
    """The newest suspension of the job."""
    suspended_seconds: int = 0
    """How long earlier suspensions took in total."""
    stopping: Stopping | None = None
    """That the job is past `activeDeadlineSeconds`, and fails once its pods have saved a checkpoint and
    ended. Nothing takes that back. Absent before that, and once the job has ended."""
    queue: QueueStatus | None = None
    """How Kueue knows the job. Absent without a queue."""
    given_back: int = 0
    """How many times the job gave its nodes back because not all the pods that it needs found one. These are
    no restarts."""
    waiting_for_room: WaitingForRoom | None = None
    """How the attempt waits for nodes. Absent once it has them."""
    micro_batch_tokens: int | None = None
    """Most tokens of a micro-batch from now on: half of what the spec says, because an attempt ran out of GPU
    memory after it had made a step. Absent before that."""
    starting_since: datetime | None = None
    """Start of `startupDeadlineSeconds`. That is when the attempt first had its nodes; it moves later
    while the attempt waits for nodes again or reads its checkpoint. Absent before that."""
    last_failure: LastFailure | None = None
    """The newest failure or blocker and its cause. A failure ended an attempt or the job; a blocker keeps the
    job from continuing. It stays when that is over, until there is something newer."""
    last_error: ErrorSignature | None = None
    """The Python error that ended the attempt before this one. If this attempt ends with the same error, the
    job fails. Absent where the earlier attempt ended otherwise, or with an error that may pass."""
    notes: Annotated[str, Field(max_length=1024)] = ""
    """What to know in addition to the conditions: that changes to the spec are not followed, or that the CRD
    is older than the operator. The message of Ready ends with it."""
    revision: ShortText = ""
    """Hash of everything that was recorded when the job started."""
    config_digest: ShortText = ""
    """SHA-256 of the ConfigMap of the revision. No pod is created from another one."""
    image: Annotated[str, Field(max_length=512)] = ""
    """Runtime image, recorded when the job started."""
    image_id: Annotated[str, Field(max_length=512)] = ""
    """What the node of the first trainer pod calls the image that it ran. If that is a digest in the
    repository of `image`, later pods get the image by the digest. If not, a pod that runs another image under
    the same name is not used."""
    start_time: datetime | None = None
    """When the first pods were created."""
    completion_time: datetime | None = None
    """When the job ended."""

    @property
    def is_held_back(self) -> bool:
        """Whether the job has given its nodes back and does not make its pods again yet."""
        return self.waiting_for_room is not None and self.waiting_for_room.held_back_until is not None

    @property
    def is_suspended(self) -> bool:
        """Whether the job is suspended, whether or not its pods have ended."""
        return self.suspension is not None and self.suspension.until is None
