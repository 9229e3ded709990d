"""Why a job is suspended, and what that changes in its status: one notion that its pods, its clocks and its
next attempt follow, whatever suspends it. Pure.

The stage is SUSPENDED as long as `why_suspended` finds a reason: the pods go and no policy with a clock runs.
When it finds none any more the next attempt follows. Another cause of a suspension is another answer of it.
"""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import GRPOJobStatus, Suspension
from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.queue import is_for_queue, why_not_admitted

_LONGEST_MESSAGE = 4096


def why_suspended(observed: Observed, status: GRPOJobStatus) -> ReasonMessage | None:
    """Why the job is to be suspended; None where it is not. While its spec cannot be read it stays as it is,
    but for what Kueue decides."""
    job, current = observed.job, _current(status)
    is_queued = current is not None and is_for_queue(status)
    if job.suspend and (job.spec is not None or is_queued):
        return ReasonMessage(Reason.SUSPENDED, "spec.suspend is true")
    if current is not None and not is_queued:
        is_by_rule = current.reason == Reason.SUSPENDED_BY_RULE
        if job.spec is None or (is_by_rule and job.suspend == current.spec_suspend):
            return ReasonMessage(current.reason, current.message)
    return why_not_admitted(observed, status)


def suspended(draft: Draft, observed: Observed, now: datetime, why: ReasonMessage) -> Draft:
    """The draft of a job that is suspended. Its attempt is over: what it waited for is forgotten, and the
    attempt after it waits anew."""
    job, current = observed.job, _current(draft.status)
    suspension = Suspension(
        since=current.since if current else now,
        reason=why.reason,
        message=why.message[:_LONGEST_MESSAGE],
        spec_suspend=job.suspend if why.reason == Reason.SUSPENDED_BY_RULE else None,
    )
    if current is not None and why == ReasonMessage(current.reason, current.message):
        suspension = current
    draft = draft.with_status(suspension=suspension, waiting_for_room=None, starting_since=None)
    return replace(draft, stage=Stage.SUSPENDED, left_alone=None, without_pods=why)


def _current(status: GRPOJobStatus) -> Suspension | None:
    """The suspension that lasts; None where the job is not suspended."""
    return status.suspension if status.is_suspended else None


def ended_suspension(status: GRPOJobStatus, now: datetime) -> dict[str, object]:
    """The changes to the status of a job that is no longer suspended; none where it is not suspended."""
    if status.suspension is None or not status.is_suspended:
        return {}
    seconds = round((now - status.suspension.since).total_seconds()) if status.start_time else 0
    return {
        "suspension": status.suspension.model_copy(update={"until": now}),
        "suspended_seconds": status.suspended_seconds + max(0, seconds),
    }


def active_seconds(status: GRPOJobStatus, now: datetime) -> float:
    """How long a job that is not suspended has been active: the time since its start, but for that in which
    it was suspended."""
    if status.start_time is None:
        return 0.0
    return (now - status.start_time).total_seconds() - status.suspended_seconds


def pods_left(observed: Observed) -> tuple[PodView, ...]:
    """The pods of the job that are to go and are there, those of the trainer first: all but those that have
    ended and stay for their logs."""
    pods = (*observed.trainers, *(pod for engine in observed.rollouts for pod in engine.pods))
    return tuple(pod for pod in pods if not pod.is_over or pod.is_deleting)
