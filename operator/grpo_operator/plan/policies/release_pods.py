"""Policy: a finished job gives its hardware back."""

from datetime import datetime

from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Stage


def release_pods(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Rollout pods go; trainer pods that have ended stay for their logs, those still running are stopped."""
    if draft.stage is not Stage.FINISHED:
        return draft
    unneeded = [*observed.rollouts, *(pod for pod in observed.trainers if not pod.is_over)]
    return draft.deleting_pods(unneeded)
