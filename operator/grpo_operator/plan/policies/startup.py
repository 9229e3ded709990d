"""Policy: the job fails when an attempt that has room does not begin its first step in time. The message says
what it waited for."""

from datetime import datetime, timedelta

from grpo_api.contract.reasons import Reason
from grpo_api.judge.clocks import is_reading
from grpo_api.v1alpha1.status import Condition, ConditionType
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.conditions import is_true
from grpo_operator.plan.draft import Draft
from grpo_operator.plan.ends import fail_at_deadline, unmet
from grpo_operator.plan.facts import FirstStep

_READING_SECONDS = 60.0
"""How often the status learns that a checkpoint is still being read."""


def keep_startup_deadline(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """`startupDeadlineSeconds` from the time at which every trainer pod and, in mode Disaggregated, a rollout
    pod first had nodes, or its checkpoint was last seen to be read. An attempt that waits for room is not
    late. No other attempt follows: its pods would find the same cause on the same nodes."""
    attempt = draft.status.attempt
    draft = draft.with_status(starting_since=_starting_since(draft, observed))
    began_at = draft.status.starting_since
    if attempt != observed.job.status.attempt or draft.facts.room_at is None or began_at is None:
        return draft
    if draft.facts.first_step is not FirstStep.NOT_BEGUN:
        return draft
    held_up = _why_no_step(draft, observed)
    if held_up is None:
        return draft
    deadline = draft.snapshot.spec.startup_deadline_seconds
    left = deadline - (now - began_at).total_seconds()
    if left > 0:
        return draft.waking_after(min(left, _READING_SECONDS) if _reads(draft) else left)
    missed = f"attempt {attempt} has not begun a step within startupDeadlineSeconds ({deadline})"
    return fail_at_deadline(
        draft, observed, now, held_up=held_up, reason=Reason.STARTUP_DEADLINE_EXCEEDED, missed=missed
    )


def _starting_since(draft: Draft, observed: Observed) -> datetime | None:
    """Start of the deadline. The time in which a lost engine waits for another node does not count, nor
    does that in which a checkpoint is read. A lost engine does not start the deadline anew: otherwise a job
    whose engine is lost again and again would never end. With a CRD that drops the field it runs from the
    oldest engine that is left."""
    status, room_at = draft.status, draft.facts.room_at
    if status.attempt != observed.job.status.attempt:
        return None
    if room_at is None:
        return status.starting_since
    if status.starting_since is None:
        return room_at
    liveness = observed.remembered.report.liveness
    if _reads(draft) and liveness is not None:
        # whole seconds, as all times in a status
        return max(status.starting_since, liveness.changed_at.replace(microsecond=0))
    waiting = status.waiting_for_room
    waited = max(room_at - waiting.since, timedelta()) if waiting else timedelta()
    return status.starting_since + waited


def _reads(draft: Draft) -> bool:
    progress = draft.facts.last_progress
    return progress is not None and is_reading(progress)


def _why_no_step(draft: Draft, observed: Observed) -> Condition | None:
    """The condition that says why this attempt does not train yet."""
    status = observed.job.status
    if not draft.is_running:
        return unmet(status, ConditionType.RUNNING)
    is_rollout_ready = is_true(status, ConditionType.ROLLOUT_READY)
    return unmet(status, ConditionType.READY if is_rollout_ready else ConditionType.ROLLOUT_READY)
