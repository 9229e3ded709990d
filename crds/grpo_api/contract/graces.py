"""How long a trainer pod may take to stop: the operator sets it, the supervisor keeps within it."""

TRAINER_GRACE_SECONDS = 60
"""terminationGracePeriodSeconds of a trainer pod: for a checkpoint after SIGTERM, and for the supervisor to
say how it ended."""
SUPERVISOR_MARGIN_SECONDS = 10
"""What of it is the supervisor's own, once the ranks are gone."""
RANKS_GRACE_SECONDS = TRAINER_GRACE_SECONDS - SUPERVISOR_MARGIN_SECONDS
"""For the ranks to save and stop, before they are killed."""
