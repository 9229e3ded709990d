"""Policy: a job that has ended is deleted after `ttlSecondsAfterFinished`, or `ttlSecondsAfterFailed`."""

from datetime import datetime

from grpo_operator.cluster.kinds import JOBS
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Deletion, Draft
from grpo_operator.plan.notes import ttl_seconds_of


def delete_when_expired(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Delete the job, and with it what it owns, at the time that follows from its status. One that a GitOps
    controller tracks stays, as its notes say: it would be created again, and train again."""
    job, ended_at = observed.job, draft.status.completion_time
    ttl = ttl_seconds_of(job, draft.status)
    if ttl is None or ended_at is None or job.tracked_by:
        return draft
    left = ttl - (now - ended_at).total_seconds()
    return draft.waking_after(left) if left > 0 else draft.deleting(Deletion(JOBS, job.name, job.uid))
