"""Policies: the trainer pods of the current attempt exist, once no process of an earlier one is alive."""

from dataclasses import replace
from datetime import datetime, timedelta

from grpo_api.contract.environment import Role
from grpo_api.contract.graces import MAX_TRAINER_GRACE_SECONDS, TRAINER_GRACE_SECONDS
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.attempts import pause_seconds
from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.children.placement import placed
from grpo_operator.children.pod import grace_seconds_of
from grpo_operator.children.trainer import trainer_pod
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.conditions import condition
from grpo_operator.plan.draft import Draft
from grpo_operator.plan.queue import may_have_engine, placement_of_trainer
from grpo_operator.plan.waiting import early_end, on_node, waiting_for_end
from grpo_operator.plan.without_progress import without_progress


def end_earlier_attempts(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Stop older attempts, wait until their processes are gone, and pause after failures.

    Pods of the attempt before that have ended stay for their logs until the next attempt is over.
    """
    attempt = draft.status.attempt
    older = [pod for pod in observed.trainers if pod.position[0] < attempt]
    unneeded = [pod for pod in older if not pod.is_over or pod.position[0] < attempt - 1]
    draft = draft.deleting_pods(unneeded, grace_seconds=_grace_seconds(draft))
    running = [pod for pod in older if not pod.is_over]
    if running:
        pod, attempt = running[0], running[0].position[0]
        message = f"trainer pod {pod.name}{on_node(pod)} of attempt {attempt} must end first"
        return waiting_for_end(draft, pod, now, ReasonMessage(Reason.WAITING_FOR_EARLIER_ATTEMPT, message))
    until = _pause_until(draft)
    if until is not None and until > now:
        left = (until - now).total_seconds()
        return replace(draft, waits_for=_pausing(draft, until)).waking_after(left)
    return draft


def keep_trainers(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Create the trainer pods that are missing, unless something else must happen first."""
    if draft.waits_for:
        return draft
    snapshot, status = draft.snapshot, draft.status
    names = (snapshot.names.trainer(attempt=status.attempt, index=index) for index in draft.facts.missing)
    for name in names:
        if (ended := early_end(observed, name, now)) is not None:
            why, seconds = ended
            return replace(draft, early_end=why).waking_after(seconds)
    where = placement_of_trainer(draft, observed)
    if isinstance(where, ReasonMessage):
        return replace(draft, waits_for=where)
    pods = (
        trainer_pod(
            snapshot,
            attempt=status.attempt,
            index=index,
            given_back=status.given_back,
            micro_batch_tokens=status.micro_batch_tokens,
            checkpoint_step=status.highest_checkpoint_step,
            checkpoint_seconds=status.checkpoint_seconds,
            has_saved=status.checkpoint_step is not None,
            num_engines=_num_engines(draft, observed),
        )
        for index in draft.facts.missing
    )
    return draft.creating(*(placed(pod, where) for pod in pods))


def _num_engines(draft: Draft, observed: Observed) -> int:
    """How many engines may come now. The trainer does not wait for those that have no quota."""
    num_engines = draft.snapshot.num_engines
    num_admitted = sum(may_have_engine(draft, observed, replica) for replica in range(num_engines))
    return max(num_admitted, min(num_engines, 1))


def _grace_seconds(draft: Draft) -> int:
    """How long pods of an earlier attempt may take to end: as long as the save that may be in flight. Their
    gang is not complete and begins no other, and it may hang."""
    asked = grace_seconds_of(draft.snapshot.spec, role=Role.TRAINER)
    needed = max(TRAINER_GRACE_SECONDS, draft.status.checkpoint_seconds or 0)
    needed = min(needed, MAX_TRAINER_GRACE_SECONDS)  # whatever a trainer reports
    return needed if asked is None else min(needed, asked)


def _pause_until(draft: Draft) -> datetime | None:
    """When the current attempt may start; None where it need not wait, or has started already.

    From the status alone, so that an operator that restarts neither forgets the pause nor begins it again.
    """
    past, decided_at = without_progress(draft.status), draft.facts.decided_at
    pause = pause_seconds(past.num_failures, num_disruptions=past.num_disruptions)
    if pause == 0 or decided_at is None or draft.facts.gang:
        return None
    return decided_at + timedelta(seconds=pause)


def _pausing(draft: Draft, until: datetime) -> ReasonMessage:
    """Why the attempt waits, and until when."""
    past, restarting = without_progress(draft.status), condition(draft.status, ConditionType.RESTARTING)
    ends = [
        f"{times} {what if times == 1 else f'{what}s'}"
        for times, what in ((past.num_disruptions, "disruption"), (past.num_failures, "failure"))
        if times
    ]
    since = "" if past.checkpoint_step is None else f" since the checkpoint of step {past.checkpoint_step}"
    in_a_row = f"in a row without a new checkpoint{since}"
    message = (
        f"attempt {draft.status.attempt} starts at {until:%Y-%m-%dT%H:%M:%SZ}, because attempts before it "
        f"ended {in_a_row}: {' and '.join(ends)}" + (f"; {restarting.message}" if restarting else "")
    )
    return ReasonMessage(Reason.WAITING_FOR_EARLIER_ATTEMPT, message)
