"""Labels on every child of a job, and the name rule that keeps them within Kubernetes' limits."""

import hashlib

GROUP = "grpo.dev"
JOB = "grpo.dev/job"
JOB_UID = "grpo.dev/job-uid"
ROLE = "grpo.dev/role"
REPLICA = "grpo.dev/replica"
ATTEMPT = "grpo.dev/attempt"
NODE_INDEX = "grpo.dev/node-index"
MANAGED_BY = "app.kubernetes.io/managed-by"
NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
OPERATOR = "grpo-operator"


def short_hash(text: str, length: int = 8) -> str:
    """The first `length` hex digits of the SHA-256 of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def bounded(name: str, limit: int = 63) -> str:
    """`name` when it fits into `limit` characters, else a cut name that keeps a hash of the whole.

    Two long names never collide because one was cut.
    """
    if len(name) <= limit:
        return name
    return f"{name[: limit - 9].rstrip('-.')}-{short_hash(name)}"
