"""The two ends of a job, each a set of conditions that is never taken back."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.conditions import ConditionState, with_condition
from grpo_operator.plan.draft import Draft, Stage


def complete(draft: Draft, observed: Observed, now: datetime, *, message: str) -> Draft:
    """The job did what it was asked for."""
    return _ended(draft, observed, now, ReasonMessage(Reason.COMPLETED, message), is_success=True)


def failed(draft: Draft, observed: Observed, now: datetime, why: ReasonMessage) -> Draft:
    """The job will not be tried again."""
    return _ended(draft, observed, now, why, is_success=False)


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
    status = status.model_copy(update={"phase": phase, "completion_time": now})
    return replace(draft, status=status, stage=Stage.FINISHED)
