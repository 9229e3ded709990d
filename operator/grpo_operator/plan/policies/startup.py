"""Policy: an attempt that has room and does not get to its first step in time fails the job, and the message
says what it waited for."""

from datetime import datetime

from grpo_api.contract.reasons import Reason
from grpo_api.v1alpha1.status import Condition, ConditionType
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.conditions import is_true
from grpo_operator.plan.deadline import fail_at_deadline, unmet
from grpo_operator.plan.draft import Draft, Stage


def keep_startup_deadline(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """`startupDeadlineSeconds` from the time at which every trainer pod and, in mode Disaggregated, a rollout
    pod had nodes. An attempt that waits for room is not late. Not retried: what keeps pods with nodes from
    running for so long does not go away by making others."""
    frozen, attempt, began_at = draft.frozen, draft.status.attempt, draft.facts.room_at
    if draft.stage is not Stage.ACTIVE or frozen is None or attempt != observed.job.status.attempt:
        return draft
    if began_at is None or draft.is_held_back or draft.facts.may_have_begun:
        return draft
    held_up = _held_up_by(draft, observed)
    if held_up is None:
        return draft
    deadline = frozen.spec.startup_deadline_seconds
    left = deadline - (now - began_at).total_seconds()
    if left > 0:
        return draft.waking_after(left)
    missed = f"attempt {attempt} has not begun a step within startupDeadlineSeconds ({deadline})"
    return fail_at_deadline(
        draft, observed, now, held_up=held_up, reason=Reason.STARTUP_DEADLINE_EXCEEDED, missed=missed
    )


def _held_up_by(draft: Draft, observed: Observed) -> Condition | None:
    """The condition that says why this attempt does not train yet."""
    status = observed.job.status
    if not draft.is_running:
        return unmet(status, ConditionType.RUNNING)
    is_rollout_ready = is_true(status, ConditionType.ROLLOUT_READY)
    return unmet(status, ConditionType.READY if is_rollout_ready else ConditionType.ROLLOUT_READY)
