"""Policies: a job that has been active for too long saves a checkpoint, loses its pods and fails."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.ends import failed
from grpo_operator.plan.last_failure import last_failure
from grpo_operator.plan.suspension import active_seconds, pods_left
from grpo_operator.plan.waiting import LONG_PAST_GRACE


def keep_active_deadline(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """`activeDeadlineSeconds` from the start of the job, without the time in which it is suspended. What its
    pods do once they are asked to end is no failure: they end because of the deadline."""
    deadline = draft.snapshot.spec.active_deadline_seconds
    if deadline is None:
        return draft
    left = deadline - active_seconds(draft.status, now)
    if left > 0:
        return draft.waking_after(left)
    message = f"the job has been active for longer than activeDeadlineSeconds ({deadline})"
    why = ReasonMessage(Reason.ACTIVE_DEADLINE_EXCEEDED, message)
    return replace(draft.with_status(waiting_for_room=None), stage=Stage.STOPPING, without_pods=why)


def fail_without_pods(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """The job fails once its pods have ended. One that a lost node still shows long after its grace period
    saves nothing any more."""
    assert draft.without_pods is not None  # the deadline that was missed
    if any(not _is_given_up(pod, now) for pod in pods_left(observed)):
        return draft
    why, saved = draft.without_pods, draft.status.highest_checkpoint_step
    if saved is not None:
        message = f"{why.message}; with resumeFrom.job: {draft.snapshot.job} another job continues from its "
        why = replace(why, message=f"{message}newest checkpoint, of step {saved} or later")
    draft = draft.with_status(last_failure=last_failure(why, attempt=draft.status.attempt))
    return failed(draft, observed, now, why)


def _is_given_up(pod: PodView, now: datetime) -> bool:
    return pod.must_end_by is not None and now >= pod.must_end_by + LONG_PAST_GRACE
