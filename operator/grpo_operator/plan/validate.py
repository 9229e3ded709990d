"""Policy: a spec that cannot be read fails the job with the sentence that says why."""

from dataclasses import replace
from datetime import datetime

from grpo_operator.observed import Observed, Trouble
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.outcome import failed

SCHEMA_SKEW = "SchemaSkew"
"""Reason of everything that was written by another release."""


def refuse_invalid(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Admission refuses nearly all wrong specs; this is for what slipped past it. A job that has started
    goes on with its frozen spec, and one that is newer than this operator waits for its operator."""
    job = observed.job
    if draft.stage is not Stage.ACTIVE or not job.problem or draft.status.attempt > 0:
        return draft
    if job.is_skewed:
        return replace(draft, blocked=too_new(job.problem))
    return failed(draft, observed, now, reason="InvalidSpec", message=job.problem)


def too_new(problem: str) -> Trouble:
    """A spec with what this operator has never heard of."""
    return Trouble(
        SCHEMA_SKEW,
        f"this operator is older than the job's schema ({problem}): run the operator of the release the "
        "GRPOJob CRD came with",
    )
