"""How a job ends at a deadline: with what it waited for, in its conditions and in lastFailure. Pure."""

from datetime import datetime

from grpo_api.contract.environment import Role
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import Condition, ConditionStatus, ConditionType, GRPOJobStatus
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.conditions import condition
from grpo_operator.plan.draft import Draft
from grpo_operator.plan.last_failure import Place, last_failure
from grpo_operator.plan.outcome import failed


def unmet(status: GRPOJobStatus, kind: ConditionType) -> Condition | None:
    """The condition, if it was written and is False."""
    found = condition(status, kind)
    return found if found and found.status == ConditionStatus.FALSE else None


def fail_at_deadline(
    draft: Draft, observed: Observed, now: datetime, *, held_up: Condition, reason: Reason, missed: str
) -> Draft:
    """The job fails, and says which deadline it `missed` and which condition held it up. A failure that the
    attempt has recorded already stays: it names the pod."""
    attempt = draft.status.attempt
    if draft.status.last_failure is None or draft.status.last_failure.attempt != attempt:
        why = ReasonMessage(held_up.reason, held_up.message)
        place = _place(draft, observed, held_up)
        draft = draft.with_status(last_failure=last_failure(why, attempt=attempt, place=place))
    message = f"{missed}: {held_up.reason}: {held_up.message}"
    return failed(draft, observed, now, ReasonMessage(reason, message))


def _place(draft: Draft, observed: Observed, held_up: Condition) -> Place:
    """The pod that held the attempt up: one that is blocked, or the engine or trainer that is waited for."""
    facts = draft.facts
    blocker = facts.trainer_blocker or facts.engine_blocker
    engines = (pod for pod in observed.rollouts if pod.is_alive and not pod.is_ready)
    engine = next(engines, None) if held_up.type is ConditionType.ROLLOUT_READY else None
    earlier = next(iter(facts.earlier), None)
    pod = blocker.pod if blocker else engine or earlier or facts.first
    if pod is None and draft.frozen:
        return Place(Role.TRAINER, draft.frozen.names.trainer(attempt=facts.attempt, index=0))
    if pod is None:
        return Place(Role.TRAINER)
    return Place(Role.ROLLOUT if pod in observed.rollouts else Role.TRAINER, pod.name, pod.node)
