"""Policies: a job that has been active for too long saves a checkpoint, loses its pods and fails."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import Stopping
from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.ends import failed
from grpo_operator.plan.last_failure import last_failure
from grpo_operator.plan.suspension import active_seconds, pods_left
from grpo_operator.plan.waiting import LONG_PAST_GRACE


def keep_active_deadline(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """`activeDeadlineSeconds` from the start of the job, without the time in which it is suspended; of a job
    that is left alone too, where it can be read. That it is over is in status before a pod is deleted, so
    that an operator whose clock is behind stops the job too."""
    spec = draft.known_snapshot.spec if draft.known_snapshot else observed.job.spec
    deadline = spec.active_deadline_seconds if spec else None
    if deadline is None or draft.status.start_time is None:
        return draft
    left = deadline - active_seconds(draft.status, now)
    if left > 0:
        return draft.waking_after(left)
    message = f"the job has been active for longer than activeDeadlineSeconds ({deadline})"
    stopping = Stopping(since=now, reason=Reason.ACTIVE_DEADLINE_EXCEEDED, message=message)
    draft = draft.with_status(stopping=stopping, waiting_for_room=None)
    return replace(draft, stage=Stage.STOPPING, left_alone=None)


def stop(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Why the pods go is in status. What they do once they are asked to end is no failure."""
    stopping = draft.status.stopping
    assert stopping is not None  # it is why the job is in this stage
    return replace(draft, without_pods=ReasonMessage(stopping.reason, stopping.message))


def fail_without_pods(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """The job fails once its pods have ended. One that a lost node still shows long after its grace period
    saves nothing any more."""
    assert draft.without_pods is not None  # the deadline that was missed
    if any(not _is_given_up(pod, now) for pod in pods_left(observed)):
        return draft
    why, saved = draft.without_pods, draft.status.highest_checkpoint_step
    if saved is not None:
        message = f"{why.message}; with resumeFrom.job: {observed.job.name} another job continues from its "
        why = replace(why, message=f"{message}newest checkpoint, of step {saved} or later")
    draft = draft.with_status(last_failure=last_failure(why, attempt=draft.status.attempt))
    return failed(draft, observed, now, why)


def _is_given_up(pod: PodView, now: datetime) -> bool:
    return pod.must_end_by is not None and now >= pod.must_end_by + LONG_PAST_GRACE
