"""Policy: an attempt that does not get to its first step in time fails the job, and the message says what it
waited for."""

from datetime import datetime

from grpo_api.contract.environment import Role
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import Condition, ConditionStatus, ConditionType, GRPOJobStatus, Phase
from grpo_operator.children.frozen_job import FrozenJob
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.conditions import condition, is_true
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.last_failure import Place, last_failure
from grpo_operator.plan.outcome import failed


def keep_startup_deadline(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """`startupDeadlineSeconds` from the attempt's first pod, or from the decision for the attempt while there
    is none. Not retried: what keeps pods from running for so long does not go away by making others."""
    frozen, attempt = draft.frozen, draft.status.attempt
    if draft.stage is not Stage.ACTIVE or frozen is None or attempt != observed.job.status.attempt:
        return draft
    held_up = _held_up_by(draft, observed)
    if held_up is None:
        return draft
    deadline = frozen.spec.startup_deadline_seconds
    began_at = draft.facts.first_pod_at or draft.facts.decided_at or draft.status.start_time or now
    left = deadline - (now - began_at).total_seconds()
    if left > 0:
        return draft.waking_after(left)
    message = (
        f"attempt {attempt} has not begun a step within startupDeadlineSeconds ({deadline}): "
        f"{held_up.reason}: {held_up.message}"
    )
    if draft.status.last_failure is None or draft.status.last_failure.attempt != attempt:
        why = ReasonMessage(held_up.reason, held_up.message)
        place = _place(draft, observed, frozen, held_up)
        draft = draft.with_status(last_failure=last_failure(why, attempt=attempt, place=place))
    return failed(draft, observed, now, ReasonMessage(Reason.STARTUP_DEADLINE_EXCEEDED, message))


def _held_up_by(draft: Draft, observed: Observed) -> Condition | None:
    """The condition that says why this attempt does not train yet. None when it trains or has trained, and
    when this operator cannot know: a trainer that does not answer it may still be training."""
    status = observed.job.status
    if draft.is_running:
        if draft.facts.has_begun is not False:
            return None
        is_rollout_ready = is_true(status, ConditionType.ROLLOUT_READY)
        return _unmet(status, ConditionType.READY if is_rollout_ready else ConditionType.ROLLOUT_READY)
    if status.phase is Phase.RUNNING or _is_untried(draft, observed):
        return None
    return _unmet(status, ConditionType.RUNNING)


def _is_untried(draft: Draft, observed: Observed) -> bool:
    """Whether this process has not yet tried to make or delete what is due. It may have been away for longer
    than the deadline, and must try before it gives the job up."""
    older = [pod for pod in observed.trainers if pod.position[0] < draft.status.attempt and not pod.is_over]
    if older:
        return not all(pod.is_deleting for pod in older)
    return bool(draft.facts.missing) and observed.remembered.refusal is None


def _unmet(status: GRPOJobStatus, kind: ConditionType) -> Condition | None:
    """The condition, if it was written and is False."""
    found = condition(status, kind)
    return found if found and found.status == ConditionStatus.FALSE else None


def _place(draft: Draft, observed: Observed, frozen: FrozenJob, held_up: Condition) -> Place:
    """The pod that held the attempt up: one that is blocked, or the engine or trainer that is waited for."""
    facts = draft.facts
    blocker = facts.trainer_blocker or facts.engine_blocker
    engines = (pod for pod in observed.rollouts if pod.is_alive and not pod.is_ready)
    engine = next(engines, None) if held_up.type is ConditionType.ROLLOUT_READY else None
    pod = blocker.pod if blocker else engine or facts.first
    if pod is None:
        return Place(Role.TRAINER, frozen.names.trainer(attempt=facts.attempt, index=0))
    return Place(Role.ROLLOUT if pod in observed.rollouts else Role.TRAINER, pod.name, pod.node)
