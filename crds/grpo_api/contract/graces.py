"""How long a trainer pod may take to stop. The operator sets this limit, and the supervisor observes it."""

import math

TRAINER_GRACE_SECONDS = 60
"""terminationGracePeriodSeconds of a trainer pod, unless saves are known to need longer: time for a
checkpoint after SIGTERM and for the termination message."""
SAVES_IN_GRACE = 3
"""How many saves it must have time for: the one that is in flight, the one after it, and one in reserve."""
MAX_TRAINER_GRACE_SECONDS = 3600
"""The longest, however long its saves take: a pod that is deleted ends within this time."""
SUPERVISOR_MARGIN_SECONDS = 10
"""The part of it that the supervisor has for itself after the ranks have ended."""
RANKS_GRACE_SECONDS = TRAINER_GRACE_SECONDS - SUPERVISOR_MARGIN_SECONDS
"""The part of it in which the ranks save and stop; then they are killed."""


def trainer_grace_seconds(checkpoint_seconds: float | None) -> int:
    """terminationGracePeriodSeconds of a trainer pod, given how long the newest save took, if that is
    known."""
    needed = math.ceil(SAVES_IN_GRACE * (checkpoint_seconds or 0))
    return min(MAX_TRAINER_GRACE_SECONDS, max(TRAINER_GRACE_SECONDS, needed))
