"""Policy: a person may give up checkpoints that are no longer on the claim."""

from datetime import datetime

from grpo_api.contract.reasons import Reason
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Stage


def accept_loss(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """No attempt begins below the highest checkpoint that the status knows. Where one has ended because it is
    missing, the annotation with its step has the next one begin, at once, with what is there."""
    status, failure = draft.status, draft.status.last_failure
    if draft.stage is not Stage.ACTIVE or draft.facts.gang or status.highest_checkpoint_step is None:
        return draft
    is_missing = failure is not None and failure.reason == Reason.CHECKPOINT_MISSING
    if not is_missing or observed.job.accepted_loss != str(status.highest_checkpoint_step):
        return draft
    return draft.with_status(highest_checkpoint_step=None, checkpoint_step=None, disruptions_since_progress=0)
