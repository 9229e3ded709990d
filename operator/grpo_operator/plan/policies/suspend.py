"""Policies: a suspended job has no pods, and continues as the next attempt once nothing suspends it."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import Phase
from grpo_operator.children.names import trainer_position
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.causes import with_failure_so_far
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.queue import is_in_queue
from grpo_operator.plan.suspension import ended_suspension, pods_left, suspended, why_suspended
from grpo_operator.plan.waiting import on_node, waiting_for_end


def suspend(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Suspend the job, or end its suspension. That is in status before a pod is deleted, and with it that the
    attempt is over: however its pods end from then on, they are no failure. A failure from before is in
    status too, and not counted. A job that is suspended before it has begun begins later."""
    if draft.stage is Stage.LEFT_ALONE and _stays_left_alone(draft, observed):
        return draft
    why = why_suspended(observed, draft.status)
    if draft.stage is Stage.LEFT_ALONE and draft.status.attempt == 0 and not observed.job.suspend:
        why = None  # it is not its queue that it waits for
    if why is not None:
        if draft.stage in (Stage.ACTIVE, Stage.HELD_BACK):
            draft = with_failure_so_far(draft, observed)
        return suspended(draft, observed, now, why)
    if not draft.status.is_suspended:
        return draft
    attempt = draft.status.attempt
    changes = ended_suspension(draft.status, now)
    if attempt > 0:
        # the error that ended an attempt before this one is not what ended this one
        changes |= {"attempt": attempt + 1, "last_error": None, "phase": Phase.RESTARTING}
    draft = draft.with_status(**changes)
    stage = Stage.ACTIVE if draft.stage is Stage.SUSPENDED else draft.stage
    return replace(draft, stage=stage).with_facts(observed, now)


def _stays_left_alone(draft: Draft, observed: Observed) -> bool:
    """Whether nothing suspends a job that is left alone, and no suspension of it ends. A job that has begun
    follows Kueue's decisions also where its spec cannot be read. One that has not begun asks for no quota,
    and says why it cannot begin."""
    job, status = observed.job, draft.status
    if status.attempt > 0 and is_in_queue(status):
        return False
    return job.spec is None or (is_in_queue(status) and not job.suspend)


def end_pods(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Delete every pod, with the grace period that its spec gives it: a trainer saves a checkpoint and ends.
    Trainer pods that have ended stay for their logs."""
    assert draft.without_pods is not None  # it has a reason in these stages
    why = draft.without_pods
    trainers = (pod for pod in observed.trainers if not pod.is_over)
    draft = draft.deleting_pods((*trainers, *observed.rollouts))
    left = pods_left(observed)
    if not left:
        return replace(draft, waits_for=replace(why, message=f"{why.message}; {_how_it_continues(draft)}"))
    pod = left[0]
    role = "trainer" if trainer_position(pod.name) else "rollout"
    saves = " saves a checkpoint, if it trains, and" if role == "trainer" and _has_claim(draft) else ""
    message = f"{why.message}: {role} pod {pod.name}{on_node(pod)}{saves} ends"
    is_suspended = draft.stage is Stage.SUSPENDED
    reason = Reason.SUSPENDING if is_suspended else why.reason
    return waiting_for_end(draft, pod, now, ReasonMessage(reason, message))


def _has_claim(draft: Draft) -> bool:
    snapshot = draft.known_snapshot
    return snapshot is not None and snapshot.spec.checkpoint.claim_name is not None


def _how_it_continues(draft: Draft) -> str:
    """When and with what the job continues."""
    status = draft.status
    if status.attempt == 0:
        is_queued = draft.without_pods is not None and draft.without_pods.reason != Reason.SUSPENDED
        before = "the job is admitted" if is_queued else "it is false"
        return f"nothing{' else' if is_queued else ''} of the job is created before {before}"
    follows = f"attempt {status.attempt + 1} follows"
    if status.highest_checkpoint_step is not None:
        return f"{follows}, from the newest checkpoint: the last one reported is of step " + str(
            status.highest_checkpoint_step
        )
    if draft.known_snapshot is None or _has_claim(draft):
        return f"{follows}, from the newest checkpoint, if there is one"
    return f"{follows} and begins anew, because the job has no checkpoint.claimName"
