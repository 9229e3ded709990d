"""Policy: a deleted job that a finalizer holds gives up its pods."""

from datetime import datetime

from grpo_api.contract.reasons import Reason
from grpo_api.v1alpha1.status import ConditionType, RoleStatus
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.conditions import ConditionState, with_condition
from grpo_operator.plan.draft import Draft

_ORPHAN = "orphan"
"""The API server's finalizer for a deletion that leaves the children (`--cascade=orphan`)."""


def give_up_pods(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """The garbage collector deletes the children once the job is gone, which may take as long as somebody's
    finalizer holds it: its pods must not keep their nodes until then. Nothing else is done about a job that
    is being deleted."""
    holders = observed.job.finalizers
    if not holders or _ORPHAN in holders:
        return draft
    names = f"finalizer{'s' if len(holders) > 1 else ''} {', '.join(holders)}"
    message = (
        f"the job is being deleted and its pods with it; the object stays until what added the {names} has "
        "removed it from metadata.finalizers"
    )
    status, state = draft.status, ConditionState(False, Reason.BEING_DELETED, message)
    for kind in (ConditionType.READY, ConditionType.RUNNING, ConditionType.ROLLOUT_READY):
        status = with_condition(status, kind, state, generation=observed.job.generation, now=now)
    draft = draft.with_status(
        conditions=status.conditions,
        trainer=status.trainer.model_copy(update=_no_pods(status.trainer)),
        rollout=status.rollout.model_copy(update=_no_pods(status.rollout) | {"replicas": 0, "current": 0}),
    )
    return draft.deleting_pods([*observed.rollouts, *observed.trainers])


def _no_pods(role: RoleStatus) -> dict[str, object]:
    return {"desired": 0, "ready": 0, "summary": "0/0" if role.desired else role.summary}
