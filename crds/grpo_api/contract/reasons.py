"""Why a state is as it is: a reason in one word for machines, and a message for people.

`Reason` lists the reasons that this product gives itself, with the line that docs/reference.md prints for
each. Reasons of Kubernetes, such as Unschedulable, ErrImagePull or Evicted, are passed on unchanged. How a
reason follows from what a process left is in `grpo_api.judge.causes`.
"""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Reasons in conditions, in status.lastFailure, in Events and in termination messages."""

    # While a job starts
    CREATING_PODS = "CreatingPods"
    """Trainer pods are being created."""
    PODS_STARTING = "PodsStarting"
    """The trainer pods exist, but not all of them run yet."""
    ENGINES_STARTING = "EnginesStarting"
    """Not all rollout engines hold the newest weights yet; the message names one that is late, with what the
    trainer says of it if it could not be given weights."""
    TRAINER_STARTING = "TrainerStarting"
    """The trainer pods run and the trainer has not reported yet."""
    TRAINER_NOT_RUNNING = "TrainerNotRunning"
    """The engines are in the trainer's processes, which do not run."""
    WAITING_FOR_EARLIER_ATTEMPT = "WaitingForEarlierAttempt"
    """Pods of the earlier attempt still exist, or the pause after attempts without progress is not over."""
    WAITING_FOR_ROOM = "WaitingForRoom"
    """Not all pods that the job needs found a node: it has given back the nodes of those that did, and makes
    its pods again later in the same attempt; the message says when, and what was missing. Not counted."""
    WAITING_FOR_TRAINER = "WaitingForTrainer"
    """Rollout pods are made once every trainer pod has a node."""

    QUEUED = "Queued"
    """The job is in a queue of Kueue, which has not admitted it; the message has what Kueue says. The job
    waits without pods, and no clock runs."""
    ADMITTED = "Admitted"
    """Kueue has admitted the job: its pods are made, as those of the next attempt if there was one before,
    which is not counted."""
    EVICTED_FROM_QUEUE = "EvictedFromQueue"
    """Kueue has taken the quota back, as by preemption, or it is gone with the Workload of the job; the
    message says which. The pods save a checkpoint and end, and the next attempt follows once the job is
    admitted again; not counted."""

    WAITING_FOR_GROUP = "WaitingForGroup"
    """A pod gets a node together with the others of its group, as `scheduling.gang` says, and one of them
    finds none; the job waits."""
    NO_SCHEDULER = "NoScheduler"
    """The scheduler of a pod, which is the cluster's or the one that podTemplate names, does not look at it;
    the job waits."""
    NETWORK_POLICIES_OFF = "NetworkPoliciesOff"
    """The engines of the job are made of several pods, which only a NetworkPolicy protects, and the operator
    makes none; the job waits."""
    NOT_PERMITTED = "NotPermitted"
    """The job asks for something that this operator does not allow, such as a ServiceAccount, the network of
    the nodes or a gang scheduler, or a pod would have rights that no pod of a job has; the job waits."""
    WAITING_FOR_RESUMED_JOB = "WaitingForResumedJob"
    """The job that `resumeFrom.job` names does not exist, or has not ended yet; this one waits."""
    NOTHING_TO_RESUME = "NothingToResume"
    """The job that `resumeFrom.job` names has no claim, so nothing of it is kept; this one fails."""

    # While a job runs
    TRAINER_RUNNING = "TrainerRunning"
    """Every trainer pod runs."""
    TRAINING = "Training"
    """The trainer makes steps; the message says so when no completion was finished for some seconds, and when
    an engine has failed several weight syncs in a row, and why."""
    ENGINES_READY = "EnginesReady"
    """Every rollout engine has been admitted by the trainer."""
    ENGINE_HUNG = "EngineHung"
    """A rollout engine is hung and is given no work; the message names its pod, since when, and which part is
    hung. When that lasts, the pod is replaced; the job continues with the other engines."""
    IN_PROCESS = "InProcess"
    """The engines in the trainer's processes hold the newest weights."""
    LOGPROBS_DIFFER = "LogprobsDiffer"
    """Trainer and engines give the tokens sampled with the weights of their step logprobs that differ by more
    than 0.25 nats on average; the message says what to do. The job continues."""
    LOGPROBS_AGREE = "LogprobsAgree"
    """The logprobs of trainer and engines differed by more than 0.25 nats, and have not for five steps."""
    LOGPROBS_NOT_COMPARED = "LogprobsNotCompared"
    """A field of `sampling`, or `async.kvCache: Keep`, is meant to make the engines' logprobs differ from the
    trainer's; the message names it."""
    NO_REWARD = "NoReward"
    """In most of the newest steps no completion had a reward, so nothing was learned; the message says what
    to do. The job continues."""
    EQUAL_REWARDS = "EqualRewards"
    """In most of the newest steps no two completions of a prompt had different rewards, so nothing was
    learned; the message says what to do. The job continues."""
    ZERO_GRADIENT = "ZeroGradient"
    """In most of the newest steps rewards differed but the gradient was 0; the message says what to do. The
    job continues."""
    LEARNING_AGAIN = "LearningAgain"
    """Earlier steps taught nothing, and the newest one does."""
    GROUPS_LEFT_OUT = "GroupsLeftOut"
    """All of the newest groups of an environment were left out, because too many of their episodes failed
    three times; the message names it. The job continues with the others."""
    ENVIRONMENTS_WORK = "EnvironmentsWork"
    """Groups of an environment were left out, and a newer one is not."""
    NOT_RESTARTING = "NotRestarting"
    """No new attempt is being started."""
    IN_PROGRESS = "InProgress"
    """The job has not ended."""

    # While a job is suspended
    SUSPENDING = "Suspending"
    """The job is suspended and its pods end; the message names one that has not ended yet."""
    SUSPENDED = "Suspended"
    """`spec.suspend` is true. The job has no pods, or they end; no deadline runs."""
    SUSPENDED_BY_RULE = "SuspendedByRule"
    """A rule of failurePolicy with the action Suspend has suspended the job, until somebody changes
    `spec.suspend`; the message names the rule and the failure."""
    UNSUSPENDED = "Unsuspended"
    """The job is no longer suspended and continues as the next attempt, which is not counted."""

    # When a job ends
    COMPLETED = "Completed"
    """Every step is done."""
    FINISHED = "Finished"
    """The job has ended."""
    JOB_FINISHED = "JobFinished"
    """The job has ended and its engines are gone."""

    # What the operator finds out
    STARTUP_DEADLINE_EXCEEDED = "StartupDeadlineExceeded"
    """All trainer pods had nodes, and the attempt did not begin its first step within
    `startupDeadlineSeconds`; the message says what it waited for; the job fails."""
    SCHEDULING_DEADLINE_EXCEEDED = "SchedulingDeadlineExceeded"
    """The pods of an attempt had to wait for nodes longer than `schedulingDeadlineSeconds`; the message says
    what they waited for; the job fails."""
    ACTIVE_DEADLINE_EXCEEDED = "ActiveDeadlineExceeded"
    """The job has taken longer than `activeDeadlineSeconds`; its pods save a checkpoint and end, and the job
    fails."""
    TRAINER_STALLED = "TrainerStalled"
    """The trainer answered, but made no progress for `stallTimeoutSeconds`, also when not one completion was
    finished for so long; next attempt, counted."""
    PROGRESS_UNREACHABLE = "ProgressUnreachable"
    """The trainer does not answer the operator; its pods are left as they are."""
    PROGRESS_UNREADABLE = "ProgressUnreadable"
    """The operator cannot read the trainer's report; its pods are left as they are."""
    SCHEMA_SKEW = "SchemaSkew"
    """Operator, CRD, runtime image and job are of different releases; a job that this operator cannot read
    waits."""
    REVISION_LOST = "RevisionLost"
    """The spec was changed after the start although the API server forbids it, and the ConfigMap with the
    original is gone; the pods continue, and the operator makes no new ones."""
    REVISION_CHANGED = "RevisionChanged"
    """The ConfigMap of the run is not the one that the job started with; the pods continue, and the operator
    makes no new ones."""
    POD_DELETED = "PodDeleted"
    """A trainer pod was deleted, not by the operator, or its node was removed; next attempt, not counted."""
    POD_FAILED = "PodFailed"
    """A pod failed before it ran, and its node gave no reason; next attempt, not counted."""
    POD_TROUBLE = "PodTrouble"
    """A pod does not start, and the reason that its node gives is too long or has characters that a condition
    cannot hold."""
    IMAGE_CHANGED = "ImageChanged"
    """A pod runs another build of the image than the run began with, because a tag moved or a node has
    another image of that name; it is not used and is made again after a pause; not counted."""
    DISRUPTED = "Disrupted"
    """The cluster removed the pod and gave no reason; next attempt, not counted."""

    BEING_DELETED = "BeingDeleted"
    """The job is being deleted, and a finalizer holds the object, which the message names; its pods are
    deleted."""

    # What the API server refuses
    GANG_UNAVAILABLE = "GangUnavailable"
    """The PodGroup that `scheduling.gang` needs cannot be made, because the cluster does not have that gang
    scheduler, or the operator has no right on its PodGroups; the message says which; the job waits."""
    QUEUE_UNAVAILABLE = "QueueUnavailable"
    """The cluster does not have Kueue, Kueue is down, the operator does not look at it or lacks a right on
    its objects, or one that the job names does not exist; the message says which. The job waits, or goes on
    with the pods that it has, and the operator looks again at least every half a minute."""
    TOKENS_LOST = "TokensLost"
    """The Secret of a running job was deleted, and new pods need it."""
    NAME_TAKEN = "NameTaken"
    """An object that does not belong to this job has the name of one that it needs; the job waits until that
    object is gone."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """The namespace's quota does not admit a pod; the job waits."""
    POD_SECURITY_REFUSED = "PodSecurityRefused"
    """Pod Security does not admit a pod; the job waits."""
    CREATE_FORBIDDEN = "CreateForbidden"
    """An object of the job is forbidden for another reason, such as a right the operator lacks or an
    admission plugin; the job waits."""
    CREATE_REJECTED = "CreateRejected"
    """The API server calls an object of the job invalid; the job waits."""
    CREATE_FAILED = "CreateFailed"
    """The API server could not create an object of the job, most often because an admission webhook is down
    or too slow; the job waits, and the operator tries again, first after 10 s and at last every three
    minutes."""
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    """The namespace is being deleted, and nothing can be created in it."""

    # How a process of the job ended
    DONE = "Done"
    """Every step is done."""
    UNEXPECTED_ERROR = "UnexpectedError"
    """An unexpected error."""
    REPEATED_ERROR = "RepeatedError"
    """Two attempts in a row ended by the same Python error in the same step, and not by one that may pass;
    the job fails."""
    USER_ERROR = "UserError"
    """The spec, the data or user code is wrong."""
    DATA_EXHAUSTED = "DataExhausted"
    """The dataset ended before the steps."""
    CHECKPOINT_CORRUPT = "CheckpointCorrupt"
    """Checkpoints were committed but none is valid."""
    CHECKPOINT_MISSING = "CheckpointMissing"
    """The claim has no checkpoint as new as one that the job has saved to it: it was emptied, made again or
    restored to an older state. Nothing is trained; the job looks again after a pause that grows, not counted,
    until the checkpoint is back or an annotation accepts the loss."""
    ROLLOUT_LOST = "RolloutLost"
    """No rollout engine was there for too long."""
    TRANSIENT_ERROR = "TransientError"
    """A failure that a retry may cure."""
    VOLUME_FULL = "VolumeFull"
    """No space is left on a volume that the job writes to."""
    VOLUME_UNUSABLE = "VolumeUnusable"
    """A volume of the job is read-only, belongs to another user, or its storage fails; next attempt,
    counted."""
    HUB_UNREACHABLE = "HubUnreachable"
    """The Hugging Face Hub cannot be reached or fails itself, and the files are not in the cache; a trainer
    gets its next attempt, not counted, and an engine is started again."""
    REWARD_SERVICE_UNREACHABLE = "RewardServiceUnreachable"
    """A reward service could not be reached, or was overloaded, for five minutes; next attempt, counted."""
    GPU_OUT_OF_MEMORY = "GPUOutOfMemory"
    """A training process ran out of the memory of its GPU. After a step, the next attempt computes half as
    many tokens at a time, once; before the first step, and the second time, the job fails; the message names
    the fields to change."""
    ADDRESS_IN_USE = "AddressInUse"
    """Another process listens on the port at which the training processes meet, as can be on the network of
    a node; next attempt, counted."""
    PEER_LOST = "PeerLost"
    """A training process ended because another one had ended; shown only when no other cause is known."""
    KILLED = "Killed"
    """Killed by the kernel, mostly out of memory."""
    TERMINATED = "Terminated"
    """Asked to stop: eviction, drain, deletion."""

    # Events that are not conditions
    MODE_CHOSEN = "ModeChosen"
    """The job has started, in this mode and for this reason."""
    RESUMED = "Resumed"
    """The run has begun with a checkpoint of another job, as `resumeFrom` says; the message says which."""
    CHECKPOINT_SET_ASIDE = "CheckpointSetAside"
    """The newest checkpoint is damaged and was put aside: the attempt continues from an older one."""
    LOSS_ACCEPTED = "LossAccepted"
    """The annotation of the job accepts that its newest checkpoints are lost: it continues from what is on
    the claim."""
    STARTED = "Started"
    """Every trainer pod of an attempt runs."""
    FIRST_STEP = "FirstStep"
    """The job has finished its first step."""
    CHECKPOINT_SAVED = "CheckpointSaved"
    """A checkpoint is saved; of those of one minute, one is told."""
    BEST_EVALUATION = "BestEvaluation"
    """An evaluation is better than all before, and its checkpoint is saved and kept."""
    SCALED = "Scaled"
    """The job has another number of engines than before."""
    RESTARTING = "Restarting"
    """Another attempt follows; the message says why."""
    ENGINE_REPLACED = "EngineReplaced"
    """A rollout pod that is lost, or whose engine is hung, is replaced; the message says why."""
    FAILED = "Failed"
    """The job has failed; the message says why."""
    NOT_DELETED = "NotDeleted"
    """`ttlSecondsAfterFinished` does not delete the job, because Argo CD or Flux tracks it and would create
    it again; the message says what to do."""


EFFECT_REASONS = frozenset({Reason.PEER_LOST})
"""Reasons of a process that ended because another one had ended, which is the cause."""


def is_effect(reason: str) -> bool:
    """Whether a process that ended for this reason only followed another one."""
    return reason in EFFECT_REASONS


@dataclass(frozen=True)
class ReasonMessage:
    """A reason in one CamelCase word, of ours or of Kubernetes, and the sentence that goes with it."""

    reason: str
    message: str = ""
