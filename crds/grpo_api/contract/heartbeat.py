"""The sign of life of a trainer pod's supervisor: a file that it touches, and at whose age the liveness probe
looks."""

HEARTBEAT_FILE = "/dev/shm/grpo-heartbeat"  # noqa: S108 - an emptyDir of the pod
"""Where the operator lets the supervisor keep it: in memory, where no disk can hold the supervisor up."""
HEARTBEAT_SECONDS = 5
"""How often the supervisor touches it."""
HEARTBEAT_STALE_SECONDS = 60
"""From what age on the probe counts the supervisor as hung."""
