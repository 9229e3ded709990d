"""Labels and annotations of a job's children, annotations of a job, and how long names are cut to Kubernetes'
limits."""

import hashlib

JOB = "grpo.dev/job"
JOB_UID = "grpo.dev/job-uid"
ROLE = "grpo.dev/role"
REPLICA = "grpo.dev/replica"
ATTEMPT = "grpo.dev/attempt"
NODE_INDEX = "grpo.dev/node-index"
GIVEN_BACK = "grpo.dev/given-back"
"""How often its job had given its nodes back when the pod was made; absent while it had not."""
POD_GROUP = "grpo.dev/pod-group"
"""Name of the group of pods that get their nodes together or near each other, where a job asks for that."""
WOKEN_AT = "grpo.dev/woken-at"
"""Annotation of a PodGroup: when it was last written so that its scheduler tries its pods again."""
ACCEPTED_LOSS = "grpo.dev/accept-checkpoint-loss"
"""Annotation of a job: the step of the checkpoint whose loss a person accepts because it is no longer
there."""
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
"""Label of a job: says what `spec.queueName` says, where that is absent."""
PRIORITY_CLASS = "kueue.x-k8s.io/priority-class"
"""Label of a job: says what `scheduling.priorityClass` says, where that is absent."""
WORKLOAD_JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label of a Workload of Kueue: the uid of its job."""
MANAGED_BY = "app.kubernetes.io/managed-by"
NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
OPERATOR = "grpo-operator"


def short_hash(text: str, length: int = 8) -> str:
    """The first `length` hex digits of the SHA-256 of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def bounded(name: str, limit: int = 63) -> str:
    """`name` if it has at most `limit` characters, otherwise its beginning and a hash of the whole name.

    The hash keeps two long names different that begin in the same way.
    """
    if len(name) <= limit:
        return name
    return f"{name[: limit - 9].rstrip('-.')}-{short_hash(name)}"
