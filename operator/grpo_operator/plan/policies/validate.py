"""Policy: a job whose spec this operator cannot read waits, and says what it waits for."""

from dataclasses import replace
from datetime import datetime

from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.skew import unreadable_spec


def wait_until_readable(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """The API server has accepted the spec, so another release can read it: nothing is wrong with the job. A
    job that has started goes on with its frozen spec."""
    job = observed.job
    if draft.stage is not Stage.ACTIVE or not job.problem or draft.status.attempt > 0:
        return draft
    return replace(draft, left_alone=unreadable_spec(job.problem))
