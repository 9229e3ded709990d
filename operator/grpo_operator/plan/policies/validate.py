"""Policy: a spec that cannot be read fails the job with the message that says why."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.outcome import failed
from grpo_operator.plan.skew import newer_spec


def refuse_invalid(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """The API server refuses nearly all wrong specs; this is for one that it let through. A job that has
    started goes on with its frozen spec, and one that is newer than this operator waits for its operator."""
    job = observed.job
    if draft.stage is not Stage.ACTIVE or not job.problem or draft.status.attempt > 0:
        return draft
    if job.is_skewed:
        return replace(draft, skew=newer_spec(job.problem))
    return failed(draft, observed, now, ReasonMessage(Reason.INVALID_SPEC, job.problem))
