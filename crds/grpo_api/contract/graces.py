"""How long a trainer pod may take to stop. The operator sets this limit, and the supervisor observes it."""

TRAINER_GRACE_SECONDS = 60
"""terminationGracePeriodSeconds of a trainer pod: time for a checkpoint after SIGTERM and for the termination
message."""
SUPERVISOR_MARGIN_SECONDS = 10
"""The part of it that the supervisor has for itself after the ranks have ended."""
RANKS_GRACE_SECONDS = TRAINER_GRACE_SECONDS - SUPERVISOR_MARGIN_SECONDS
"""The part of it in which the ranks save and stop; then they are killed."""
