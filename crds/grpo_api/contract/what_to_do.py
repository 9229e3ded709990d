"""What a person can do about a reason, in a sentence for each: what `kubectl grpo why` ends with, and a table
of docs/reference.md.

The message beside a reason says what is wrong with this job and names its fields; these sentences say what
follows from the reason alone. A reason without one asks for nothing: it passes by itself, or is good news.
"""

from collections.abc import Mapping

from grpo_api.contract.reasons import Reason

WHAT_TO_DO: Mapping[str, str] = {
    # of Kubernetes, passed on as they are
    "Unschedulable": "Make room or lower resources in a new job; the job waits, without limit unless "
    "schedulingDeadlineSeconds is set.",
    "ErrImagePull": "Correct the image or add its imagePullSecrets; the image of a job is fixed, so apply "
    "it anew.",
    "StartError": "Name a runtime image of this release in spec.image, and apply the job anew.",
    "CreateContainerConfigError": "Create the Secret or ConfigMap that the message names.",
    "CrashLoopBackOff": "Read what the container wrote before it ended: kubectl grpo logs NAME.",
    "OOMKilled": "Raise resources.limits.memory of that role in a new job. With a claim, "
    "resumeFrom continues from its checkpoint.",
    "FailedMount": "Create the claim, ConfigMap or Secret that the message names; the pod starts once it is "
    "there.",
    "FailedAttachVolume": "Look at the claim's volume: another node may still have it.",
    "Evicted": "Nothing, if its node was short of something: the next attempt follows. Raise "
    "ephemeral-storage where the pod was over its own limit.",
    # while a job starts
    Reason.ENGINES_STARTING: "Read the log of the engine that the message names: kubectl grpo logs NAME "
    "--role rollout.",
    Reason.WAITING_FOR_EARLIER_ATTEMPT: "Nothing, unless the message names a lost node: then delete that "
    "node, or the pod with --force.",
    Reason.WAITING_FOR_ROOM: "Nothing: it tries again by itself. Free the nodes that it needs, or queue "
    "jobs with Kueue.",
    Reason.QUEUED: "Nothing: Kueue admits it in turn. Its priority and the quota of the queue decide when.",
    Reason.EVICTED_FROM_QUEUE: "Nothing: it is in its queue again and continues from its checkpoint.",
    Reason.WAITING_FOR_GROUP: "Make room for all pods of the group at once.",
    Reason.NO_SCHEDULER: "Start that scheduler, or take its name out of podTemplate in a new job.",
    Reason.NETWORK_POLICIES_OFF: "Let the operator make NetworkPolicies (networkPolicies.jobs of its chart).",
    Reason.NOT_PERMITTED: "Ask who runs the operator to allow it in the values of its chart, or leave it "
    "out of the job.",
    Reason.WAITING_FOR_RESUMED_JOB: "Wait for the end of that job, or suspend or delete it.",
    Reason.NOTHING_TO_RESUME: "Apply the job anew without resumeFrom, or name a job with "
    "checkpoint.claimName.",
    # while a job runs
    Reason.ENGINE_HUNG: "Nothing: its pod is replaced after some minutes. Keep its log if it happens again.",
    Reason.LOGPROBS_DIFFER: "Do what the message says: training on wrong logprobs teaches the wrong thing.",
    Reason.NO_REWARD: "Look at the completions (kubectl grpo samples NAME) and return a number from a "
    "reward function.",
    Reason.EQUAL_REWARDS: "Look at the completions (kubectl grpo samples NAME --order mixed): prompts are "
    "too easy or too hard, or rewards too coarse.",
    Reason.ZERO_GRADIENT: "Loosen what masks the completions, as the message says.",
    Reason.GROUPS_LEFT_OUT: "Read why its episodes failed: kubectl grpo logs NAME --role trainer.",
    # while a job is suspended
    Reason.SUSPENDED: "kubectl grpo resume NAME.",
    Reason.SUSPENDED_BY_RULE: "Look at the failure that the message names, then kubectl grpo resume NAME.",
    # what the operator finds out
    Reason.STARTUP_DEADLINE_EXCEEDED: "Mend what it waited for, or raise startupDeadlineSeconds, and apply "
    "it anew.",
    Reason.SCHEDULING_DEADLINE_EXCEEDED: "Make room, or raise schedulingDeadlineSeconds, and apply it anew.",
    Reason.ACTIVE_DEADLINE_EXCEEDED: "Continue in a new job with resumeFrom, and a larger "
    "activeDeadlineSeconds.",
    Reason.TRAINER_STALLED: "Read where each rank was: kubectl grpo logs NAME --role trainer.",
    Reason.PROGRESS_UNREACHABLE: "Let the operator reach port 8780 of the trainer pods: look for other "
    "NetworkPolicies.",
    Reason.PROGRESS_UNREADABLE: "Run an operator and a runtime image of one release.",
    Reason.SCHEMA_SKEW: "Bring operator, CRD and runtime image to one release.",
    Reason.REVISION_LOST: "Let it end, or apply it anew with resumeFrom.",
    Reason.REVISION_CHANGED: "Let it end, or apply it anew with resumeFrom.",
    Reason.POD_DELETED: "Nothing after a drain. If it goes on, find who deletes pods here in the audit log.",
    Reason.IMAGE_CHANGED: "Name the image by its digest in a new job.",
    Reason.BEING_DELETED: "Remove the finalizer that the message names once its owner is done.",
    # what the API server refuses
    Reason.GANG_UNAVAILABLE: "Install that gang scheduler, or apply the job anew without scheduling.gang.",
    Reason.QUEUE_UNAVAILABLE: "Have Kueue or the named queue put right, or take the job out of its queue.",
    Reason.TOKENS_LOST: "Suspend and resume the job: its pods start again with new tokens.",
    Reason.NAME_TAKEN: "Delete or rename the object that has the name.",
    Reason.QUOTA_EXCEEDED: "Raise the namespace's quota, wait for other pods, or lower resources in a new "
    "job.",
    Reason.POD_SECURITY_REFUSED: "Take out of the pod what the message names: podTemplate of the job, or a "
    "webhook.",
    Reason.CREATE_FORBIDDEN: "Give the operator the right that the message names, or look at the admission "
    "plugin.",
    Reason.CREATE_REJECTED: "Correct what the message names, mostly in podTemplate, and apply the job anew.",
    Reason.CREATE_FAILED: "Mend the webhook or API server that the message names; the operator tries again.",
    Reason.NAMESPACE_TERMINATING: "Apply the job in another namespace.",
    # how a process of the job ended
    Reason.UNEXPECTED_ERROR: "Read the error in the log: kubectl grpo logs NAME.",
    Reason.REPEATED_ERROR: "Mend the error that the message quotes: another attempt would end the same way.",
    Reason.USER_ERROR: "Correct what the message names, and apply the job anew.",
    Reason.DATA_EXHAUSTED: "Lower algorithm.steps, or give it more data.",
    Reason.CHECKPOINT_CORRUPT: "Restore the claim from a backup, or begin anew on an empty one.",
    Reason.CHECKPOINT_MISSING: "Bring back what was on the claim, or accept the loss with the annotation "
    "that the message names.",
    Reason.ROLLOUT_LOST: "Read why no engine was ready: kubectl grpo logs NAME --role rollout.",
    Reason.VOLUME_FULL: "Free or enlarge the volume, or lower checkpoint.keep.",
    Reason.VOLUME_UNUSABLE: "Look at the claim: it must be writable by the user of the pods.",
    Reason.HUB_UNREACHABLE: "Let the pods reach the Hub, or put the files on a claim.",
    Reason.REWARD_SERVICE_UNREACHABLE: "Look at the reward service: it was away or overloaded for minutes.",
    Reason.GPU_OUT_OF_MEMORY: "Lower the fields that the message names in a new job, such as "
    "trainer.microBatchTokens.",
    Reason.KILLED: "Raise resources.limits.memory of that role in a new job.",
    Reason.NOT_DELETED: "Delete the job where Argo CD or Flux has it: in Git.",
}
