"""Policies about jobs that have ended: they stay ended, and give their hardware back."""

from dataclasses import replace
from datetime import datetime

from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.kinds import PODS
from grpo_operator.observed import Observed
from grpo_operator.plan.conditions import is_true
from grpo_operator.plan.draft import Deletion, Draft, Stage


def stay_finished(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """An end is final, whatever happens to the pods or the spec afterwards."""
    if not is_true(draft.status, ConditionType.FINISHED):
        return draft
    return replace(draft, stage=Stage.FINISHED)


def release_pods(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Rollout pods go; trainer pods that have ended stay for their logs, those still running are stopped."""
    if draft.stage is not Stage.FINISHED:
        return draft
    going = [*observed.rollouts, *(pod for pod in observed.trainers if not pod.is_over)]
    return draft.deleting(*(Deletion(PODS, pod.name, pod.uid) for pod in going if not pod.is_deleting))
