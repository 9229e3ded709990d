"""Policy: an attempt that does not get to its first step in time fails the job, with what held it up."""

from datetime import datetime

from grpo_api.contract.environment import Role
from grpo_api.contract.retries import has_begun
from grpo_api.v1alpha1.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    GRPOJobStatus,
    LastFailure,
    Phase,
)
from grpo_operator.children.run import Run
from grpo_operator.observed import Observed
from grpo_operator.plan.conditions import condition, is_true
from grpo_operator.plan.counts import is_running
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.gang_view import current_gang, missing_indices
from grpo_operator.plan.hindrance import engine_hindrance, trainer_hindrance
from grpo_operator.plan.outcome import failed
from grpo_operator.plan.progress import last_report
from grpo_operator.plan.rollout import is_alive


def keep_startup_deadline(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """`startupDeadlineSeconds` from the attempt's first pod, or from the decision for the attempt while there
    is none. Not retried: what keeps pods from running for so long does not go away by making others."""
    run = draft.run
    if draft.stage is not Stage.ACTIVE or run is None or draft.status.attempt != observed.job.status.attempt:
        return draft
    held_up = _held_up_by(draft, observed, run)
    if held_up is None:
        return draft
    deadline = run.spec.startup_deadline_seconds
    left = deadline - (now - _began_at(observed, now)).total_seconds()
    if left > 0:
        return draft.waking_after(left)
    attempt = draft.status.attempt
    message = (
        f"attempt {attempt} has not begun a step within startupDeadlineSeconds ({deadline}): "
        f"{held_up.reason}: {held_up.message}"
    )
    if draft.status.last_failure is None or draft.status.last_failure.attempt != attempt:
        failure = _failure(observed, run, held_up, attempt=attempt)
        draft = draft.with_status(last_failure=failure)
    return failed(draft, observed, now, reason="StartupDeadlineExceeded", message=message)


def _held_up_by(draft: Draft, observed: Observed, run: Run) -> Condition | None:
    """The condition that says why this attempt is not at work yet; None when it is, was, or cannot be known.

    A trainer that does not answer this operator is not held to the deadline, for it may well train.
    """
    status = observed.job.status
    if is_running(draft, observed):
        told = last_report(observed, attempt=status.attempt)
        if told is None or observed.complaint or has_begun(told) or _was_at_work(status):
            return None
        is_ready = is_true(status, ConditionType.ROLLOUT_READY)
        return _told(status.conditions, ConditionType.READY if is_ready else ConditionType.ROLLOUT_READY)
    if status.phase is Phase.RUNNING or _is_untried(observed, run):
        return None
    return _told(status.conditions, ConditionType.RUNNING)


def _was_at_work(status: GRPOJobStatus) -> bool:
    """Whether this attempt was seen at work before, which its trainer does not say any more when it waits for
    a lost engine in its first step. Ready is True only at work, and both conditions end with an attempt: one
    that left its state after Running came was True meanwhile."""
    ready, running = condition(status, ConditionType.READY), condition(status, ConditionType.RUNNING)
    if ready is None or running is None or running.status != ConditionStatus.TRUE:
        return False
    return is_true(status, ConditionType.READY) or ready.last_transition_time > running.last_transition_time


def _is_untried(observed: Observed, run: Run) -> bool:
    """Whether what is due has not been tried by this process: it may have been away for longer than the
    deadline, and tries before it judges."""
    attempt = observed.job.status.attempt
    older = [pod for pod in observed.trainers if pod.position[0] < attempt and not pod.is_over]
    if older:
        return not all(pod.is_deleting for pod in older)
    return bool(missing_indices(observed, run, attempt=attempt)) and observed.refusal is None


def _told(conditions: tuple[Condition, ...], kind: ConditionType) -> Condition | None:
    """A condition that was written down as not met."""
    found = next((each for each in conditions if each.type == kind), None)
    return found if found and found.status == ConditionStatus.FALSE else None


def _began_at(observed: Observed, now: datetime) -> datetime:
    status = observed.job.status
    made = [pod.created_at for pod in current_gang(observed, attempt=status.attempt).values()]
    first = min((at for at in made if at is not None), default=None)
    if first is not None:
        return first
    restarting = condition(status, ConditionType.RESTARTING)
    if restarting and restarting.status == ConditionStatus.TRUE:
        return restarting.last_transition_time
    return status.start_time or now


def _failure(observed: Observed, run: Run, held_up: Condition, *, attempt: int) -> LastFailure:
    found = trainer_hindrance(observed, attempt=attempt) or engine_hindrance(observed)
    engines = (pod for pod in observed.rollouts if is_alive(pod) and not pod.is_ready)
    waited_for = next(engines, None) if held_up.type is ConditionType.ROLLOUT_READY else None
    pod = found.pod if found else waited_for or current_gang(observed, attempt=attempt).get(0)
    role = Role.ROLLOUT if pod in observed.rollouts else Role.TRAINER
    return LastFailure(
        attempt=attempt,
        role=role.value,
        pod=pod.name if pod else run.names.trainer(attempt=attempt, index=0),
        node=pod.node if pod else "",
        reason=held_up.reason,
        message=held_up.message,
    )
