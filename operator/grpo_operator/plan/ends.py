"""How a job ends: complete or failed, for good, and at a deadline with what it waited for. Pure."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.environment import Role
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import Condition, ConditionStatus, ConditionType, GRPOJobStatus, Phase
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.conditions import ConditionState, condition, with_condition
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.last_failure import PodRef, last_failure
from grpo_operator.plan.suspension import ended_suspension


def complete(draft: Draft, observed: Observed, now: datetime, *, message: str) -> Draft:
    """The job did what it was asked for."""
    return _ended(draft, observed, now, ReasonMessage(Reason.COMPLETED, message), is_success=True)


def failed(draft: Draft, observed: Observed, now: datetime, why: ReasonMessage) -> Draft:
    """The job will not be tried again."""
    return _ended(draft, observed, now, why, is_success=False)


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
        pod = _pod_that_held_up(draft, observed, held_up)
        draft = draft.with_status(last_failure=last_failure(why, attempt=attempt, pod=pod))
    message = f"{missed}: {held_up.reason}: {held_up.message}"
    return failed(draft, observed, now, ReasonMessage(reason, message))


def _ended(draft: Draft, observed: Observed, now: datetime, why: ReasonMessage, *, is_success: bool) -> Draft:
    status = draft.status
    for kind, is_met in (
        (ConditionType.COMPLETE, is_success),
        (ConditionType.FAILED, not is_success),
        (ConditionType.FINISHED, True),
    ):
        state = ConditionState(is_met, why.reason, why.message)
        status = with_condition(status, kind, state, generation=observed.job.generation, now=now)
    phase = Phase.SUCCEEDED if is_success else Phase.FAILED
    changes = {"phase": phase, "completion_time": now, "waiting_for_room": None, "stopping": None}
    changes |= ended_suspension(status, now)
    return replace(draft, status=status.model_copy(update=changes), stage=Stage.ENDED)


def _pod_that_held_up(draft: Draft, observed: Observed, held_up: Condition) -> PodRef:
    """The pod that held the attempt up: one that is blocked, or the engine or trainer that is waited for."""
    facts = draft.facts
    blocker = facts.trainer_blocker or facts.engine_blocker
    engines = (pod for pod in observed.rollouts if pod.is_alive and not pod.is_ready)
    engine = next(engines, None) if held_up.type is ConditionType.ROLLOUT_READY else None
    earlier = next(iter(facts.earlier), None)
    pod = blocker.pod if blocker else engine or earlier or facts.first
    if pod is None:
        return PodRef(Role.TRAINER, draft.snapshot.names.trainer(attempt=facts.attempt, index=0))
    return PodRef(Role.ROLLOUT if pod in observed.rollouts else Role.TRAINER, pod.name, pod.node)
