"""Policy: a spec that cannot be read fails the job with the sentence that says why."""

from datetime import datetime

from grpo_operator.observed import Observed
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.outcome import failed


def refuse_invalid(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Admission refuses nearly all wrong specs; this is for what slipped past it. A job that has started
    goes on with its frozen spec."""
    job = observed.job
    if draft.stage is not Stage.ACTIVE or not job.problem or draft.status.attempt > 0:
        return draft
    return failed(draft, observed, now, reason="InvalidSpec", message=job.problem)
