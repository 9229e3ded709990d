"""Policy: no process of an earlier attempt is alive when the current one begins."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.retries import pause_seconds
from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.cluster.kinds import PODS
from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.conditions import condition
from grpo_operator.plan.draft import Deletion, Draft, Stage


def end_earlier_attempts(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Stop older attempts, wait until their processes are gone, and pause after failures.

    Pods of the attempt before that have ended stay for their logs until the next attempt is over.
    """
    if draft.stage is not Stage.ACTIVE or draft.frozen is None:
        return draft
    attempt = draft.status.attempt
    older = [pod for pod in observed.trainers if pod.position[0] < attempt]
    unneeded = [pod for pod in older if not pod.is_over or pod.position[0] < attempt - 1]
    draft = draft.deleting(*(Deletion(PODS, pod.name, pod.uid) for pod in unneeded if not pod.is_deleting))
    running = [pod for pod in older if not pod.is_over]
    if running:
        return replace(draft, waits_for=_must_end_first(running[0]))
    pause = _pause_left(draft, observed, now)
    if pause > 0:
        waits_for = f"attempt {attempt} starts after a pause, because those before it have failed"
        return replace(draft, waits_for=waits_for).waking_after(pause)
    return draft


def _must_end_first(pod: PodView) -> str:
    where = f" on node {pod.node}" if pod.node else ""
    message = f"trainer pod {pod.name}{where} of attempt {pod.position[0]} must end first"
    if not where:
        return message
    return (
        f"{message}: if that node is lost, delete it or taint it with "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )


def _pause_left(draft: Draft, observed: Observed, now: datetime) -> float:
    """Seconds until the current attempt may start; 0 or less once it may."""
    status = draft.status
    num_new_failures = status.attempt - observed.job.status.attempt
    pause = pause_seconds(observed.remembered.num_consecutive_failures + num_new_failures)
    restarting = condition(status, ConditionType.RESTARTING)
    if pause == 0 or restarting is None:
        return 0.0
    return pause - (now - restarting.last_transition_time).total_seconds()
