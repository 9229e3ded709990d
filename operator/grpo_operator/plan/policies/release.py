"""Policies: a job that has ended gives its hardware back, and a failed one keeps the logs that say why; a
deleted job that a finalizer holds loses its pods."""

from datetime import datetime

from grpo_api.contract.reasons import Reason
from grpo_api.v1alpha1.status import ConditionType, GRPOJobStatus, RoleStatus
from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.conditions import ConditionState, is_true, with_condition
from grpo_operator.plan.draft import Draft

_ENDS_AGAIN_SECONDS = 60.0
"""How long an engine that its node has started again may take to end again."""


def release_pods(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Trainer pods that have ended stay for their logs, and everything else goes. But of a failed job the
    trainer pods that run and the engines that are not ready stay too, ended by their nodes: a pod that has
    ended keeps its log and no hardware."""
    has_failed = is_true(draft.status, ConditionType.FAILED)
    groups = [(engine.pods, has_failed and not engine.is_ready) for engine in observed.rollouts]
    groups.append((tuple(pod for pod in observed.trainers if not pod.is_over), has_failed))
    kept = [pod for pods, may_tell in groups for pod in pods if may_tell and _has_run(pod)]
    gone = [pod for pods, may_tell in groups for pod in pods if not (may_tell and _has_run(pod))]
    draft = draft.deleting_pods(gone)
    for pod in (pod for pod in kept if not pod.is_over):
        wait = _seconds_until_ended_again(pod, draft.status, now)
        draft = draft.waking_after(wait) if wait > 0 else draft.stopping_pods([pod])
    return draft


def give_up_pods(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """The garbage collector deletes the children once the job is gone, which may take as long as somebody's
    finalizer holds it: its pods must not keep their nodes until then. Nothing else is done about a job that
    is being deleted."""
    if not observed.job.is_held:
        return draft
    holders = observed.job.finalizers
    names = f"finalizer{'s' if len(holders) > 1 else ''} {', '.join(holders)}"
    message = (
        f"the job is being deleted and its pods with it; the object stays until what added the {names} has "
        "removed it from metadata.finalizers"
    )
    status, state = draft.status, ConditionState(False, Reason.BEING_DELETED, message)
    for kind in (ConditionType.READY, ConditionType.RUNNING, ConditionType.ROLLOUT_READY):
        status = with_condition(status, kind, state, generation=observed.job.generation, now=now)
    draft = draft.with_status(
        observed_generation=observed.job.generation,
        conditions=status.conditions,
        trainer=status.trainer.model_copy(update=_no_pods(status.trainer)),
        rollout=status.rollout.model_copy(update=_no_pods(status.rollout) | {"replicas": 0, "current": 0}),
    )
    return draft.deleting_pods([*observed.rollouts, *observed.trainers])


def _has_run(pod: PodView) -> bool:
    return pod.phase == "Running" or pod.termination is not None or pod.last_termination is not None


def _seconds_until_ended_again(pod: PodView, status: GRPOJobStatus, now: datetime) -> float:
    """A node keeps the log of the last container only. Where that one runs because the one before it failed,
    it is left to fail in the same way."""
    runs_again = pod.last_termination is not None and pod.termination is None and pod.start_problem is None
    if not runs_again or status.completion_time is None:
        return 0.0
    return _ENDS_AGAIN_SECONDS - (now - status.completion_time).total_seconds()


def _no_pods(role: RoleStatus) -> dict[str, object]:
    return {"desired": 0, "ready": 0, "summary": "0/0" if role.desired else role.summary}
