"""Policy: the trainer pods of the current attempt exist, and no process of an earlier one is alive."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.retries import pause_seconds
from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.children.trainer import trainer_pod
from grpo_operator.kinds import PODS
from grpo_operator.observed import Observed, PodView
from grpo_operator.plan.conditions import condition
from grpo_operator.plan.draft import Deletion, Draft, Stage
from grpo_operator.plan.gang_view import missing_indices


def keep_one_gang(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Stop older attempts, wait until their processes are gone, then create the current one.

    Pods of the attempt before that have ended stay for their logs until the next attempt is over.
    """
    run = draft.run
    if draft.stage is not Stage.ACTIVE or run is None:
        return draft
    attempt = draft.status.attempt
    older = [pod for pod in observed.trainers if pod.position[0] < attempt]
    unneeded = [pod for pod in older if not pod.is_over or pod.position[0] < attempt - 1]
    draft = draft.deleting(*(Deletion(PODS, pod.name, pod.uid) for pod in unneeded if not pod.is_deleting))
    alive = [pod for pod in older if not pod.is_over]
    if alive:
        return replace(draft, waits_for=_waits_for(alive[0]))
    delay = _delay(draft, observed, now)
    if delay > 0:
        waits = f"attempt {attempt} starts after a pause, because those before it have failed"
        return replace(draft, waits_for=waits).waking_after(delay)
    missing = missing_indices(observed, run, attempt=attempt)
    return draft.creating(*(trainer_pod(run, attempt=attempt, index=index) for index in missing))


def _waits_for(pod: PodView) -> str:
    where = f" on node {pod.node}" if pod.node else ""
    waits = f"trainer pod {pod.name}{where} of attempt {pod.position[0]} must end first"
    if not where:
        return waits
    return (
        f"{waits}: if that node is lost, delete it or taint it with "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )


def _delay(draft: Draft, observed: Observed, now: datetime) -> float:
    """Seconds until the current attempt may start; 0 or less once it may."""
    status = draft.status
    failures = observed.failures_in_a_row + status.attempt - observed.job.status.attempt
    restarting = condition(status, ConditionType.RESTARTING)
    pause = pause_seconds(failures)
    if pause == 0 or restarting is None:
        return 0.0
    return pause - (now - restarting.last_transition_time).total_seconds()
