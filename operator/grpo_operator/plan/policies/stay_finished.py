"""Policy: a job that has ended stays ended."""

from dataclasses import replace
from datetime import datetime

from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.conditions import is_true
from grpo_operator.plan.draft import Draft, Stage


def stay_finished(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """An end is final, whatever happens to the pods or the spec afterwards."""
    if not is_true(draft.status, ConditionType.FINISHED):
        return draft
    return replace(draft, stage=Stage.FINISHED)
