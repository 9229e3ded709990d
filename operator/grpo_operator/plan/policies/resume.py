"""Policy: a job that resumes from another one learns where its checkpoints are, and waits for its end."""

from datetime import datetime

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.spec import ResumeFromSpec
from grpo_api.v1alpha1.status import ResumedFrom
from grpo_operator.children.names import Names
from grpo_operator.observe.observed import Observed, OtherJob
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.ends import failed
from grpo_operator.plan.last_failure import last_failure

LOOK_AGAIN_SECONDS = 10.0
"""How often a job looks for another one, or for its end: the watch says nothing of that to this job."""


def resume_after_another(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """A new job that resumes from another one waits until that one has ended. The path of the checkpoints is
    in the status as soon as the other job is there: it may then be deleted, which ends it too."""
    spec = observed.job.spec
    if spec is None or spec.resume_from is None:
        return draft
    resume = spec.resume_from
    if resume.source is not None:
        return draft.with_status(resumed_from=ResumedFrom(source=resume.source))
    draft = _with_place(draft, observed, resume, now)
    if draft.stage is not Stage.NEW:
        return draft
    why = _why_not_over(observed.other_job, name=resume.job or "")
    return draft if why is None else _waiting(draft, why)


def _with_place(draft: Draft, observed: Observed, resume: ResumeFromSpec, now: datetime) -> Draft:
    """The draft with the folder of the other job on its claim; one that waits, or has failed, where there is
    none."""
    other, name = observed.other_job, resume.job or ""
    if draft.status.resumed_from is not None:
        return draft
    if other is None or not other.is_there:
        return _waiting(
            draft,
            f"resumeFrom.job: there is no GRPOJob {name} in namespace {observed.job.namespace}: create it, "
            "or create this job anew with resumeFrom.source, the path of its checkpoints on its claim",
        )
    if other.problem:
        return _waiting(draft, f"resumeFrom.job: the spec of GRPOJob {name} cannot be read: {other.problem}")
    if other.claim_name is None:
        why = ReasonMessage(
            Reason.NOTHING_TO_RESUME,
            f"resumeFrom.job: GRPOJob {name} has no checkpoint.claimName, so nothing of it is kept: create "
            "this job anew without resumeFrom, or with a job that has a claim",
        )
        ended = failed(draft, observed, now, why)
        return ended.with_status(last_failure=last_failure(why, attempt=0))
    folder = Names.of(job=name, uid=other.uid).base
    found = ResumedFrom(source=f"pvc://{other.claim_name}/{folder}", job=name, job_uid=other.uid)
    return draft.with_status(resumed_from=found)


def _why_not_over(other: OtherJob | None, *, name: str) -> str | None:
    """What the other job still does; None once it can write no more. One that is gone has ended."""
    if other is None:
        return None
    if other.is_there and other.problem and not other.has_ended:
        return f"resumeFrom.job: GRPOJob {name} cannot be read: {other.problem}"
    if other.is_there and not other.has_ended:
        return (
            f"resumeFrom.job: GRPOJob {name} has not ended ({other.phase.value}): this job "
            "begins when it has ended or is deleted"
        )
    if other.living_trainer:
        return (
            f"resumeFrom.job: trainer pod {other.living_trainer} of GRPOJob {name} must end first, because "
            "it writes checkpoints"
        )
    return None


def _waiting(draft: Draft, why: str) -> Draft:
    waiting = draft.leaving_alone(ReasonMessage(Reason.WAITING_FOR_RESUMED_JOB, why))
    return waiting.waking_after(LOOK_AGAIN_SECONDS)
