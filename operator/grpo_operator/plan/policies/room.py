"""Policy: an attempt waits for room for as long as it may, and keeps no nodes that are not enough for it."""

from dataclasses import replace
from datetime import datetime, timedelta

from grpo_api.contract.reasons import Reason
from grpo_api.v1alpha1.status import Condition, ConditionType, WaitingForRoom
from grpo_operator.children.frozen_job import FrozenJob
from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.conditions import condition
from grpo_operator.plan.deadline import fail_at_deadline, unmet
from grpo_operator.plan.draft import Draft, Policy, Stage
from grpo_operator.plan.facts import FirstStep, has_reported
from grpo_operator.plan.giving_back import has_not_tried, jittered, seconds_to_hold
from grpo_operator.plan.waiting_for_end import on_node, waiting_for_end
from grpo_operator.settings import GiveBackTimes


def wait_for_room(times: GiveBackTimes) -> Policy:
    """Room is a node for every trainer pod and, in mode Disaggregated, for one rollout pod.

    An attempt that has only a part of it gives that back after a while, so that of two jobs which wait for
    each other's nodes one can run, and makes its pods again later: the same attempt, nothing counted. The
    decision is in status before a pod is deleted, and status tells the pods that were given back from those
    that come after them. A job that may be training gives nothing back.
    """

    def policy(draft: Draft, observed: Observed, now: datetime) -> Draft:
        frozen = draft.frozen
        if draft.status.attempt != observed.job.status.attempt or draft.stage is Stage.FINISHED:
            draft = draft.with_status(waiting_for_room=None)
        if draft.stage is Stage.FINISHED or frozen is None:
            return draft
        if draft.is_held_back:
            draft = _held_back(draft, observed, frozen, now)
        else:
            draft = _waiting(draft, observed, frozen, now, times)
        return draft.with_status(waiting_for_room=None) if draft.stage is Stage.FINISHED else draft

    return policy


def _waiting(
    draft: Draft, observed: Observed, frozen: FrozenJob, now: datetime, times: GiveBackTimes
) -> Draft:
    """Pods are made or wait for nodes, or an earlier attempt must end first."""
    is_pausing = bool(draft.waits_for) and not draft.facts.earlier
    first_step = draft.facts.first_step
    if draft.facts.room_at or first_step is FirstStep.BEGUN or is_pausing:
        return draft.with_status(waiting_for_room=None)
    if first_step is FirstStep.UNKNOWN:
        return draft  # a trainer that has not answered yet: neither forget the wait nor act on it
    known = draft.status.waiting_for_room or WaitingForRoom(since=now)
    tried_at = None if draft.waits_for else known.tried_at or now
    draft = draft.with_status(waiting_for_room=known.model_copy(update={"tried_at": tried_at}))
    draft = _with_deadline(draft, observed, frozen, known.since, now)
    if draft.stage is Stage.FINISHED or draft.waits_for:
        return draft
    left = seconds_to_hold(draft, observed, frozen, now, hold_seconds=times.hold_seconds)
    if left is not None and left <= 0:
        return _give_back(draft, observed, frozen, now, times)
    return draft if left is None else draft.waking_after(left)


def _give_back(
    draft: Draft, observed: Observed, frozen: FrozenJob, now: datetime, times: GiveBackTimes
) -> Draft:
    waiting = draft.status.waiting_for_room or WaitingForRoom(since=now)
    until = now + timedelta(seconds=jittered(times.hold_back_seconds, draft, frozen, purpose="hold back"))
    # what this attempt reported was about pods that go now
    is_own = has_reported(draft.status, attempt=draft.status.attempt)
    draft = draft.with_status(
        policy_version="" if is_own else draft.status.policy_version,
        given_back=draft.status.given_back + 1,
        waiting_for_room=waiting.model_copy(update={"held_back_until": until}),
    )
    message = (
        f"not all pods that attempt {draft.status.attempt} needs found a node, so it gave the others' nodes "
        f"back and makes its pods again at {until:%Y-%m-%dT%H:%M:%SZ}: {_what_was_missing(draft, observed)}"
    )
    draft = _deleting_given_back(draft, observed)
    return replace(draft, waits_for=message).waking_after((until - now).total_seconds())


def _held_back(draft: Draft, observed: Observed, frozen: FrozenJob, now: datetime) -> Draft:
    """Delete what is left of the pods that were given back. Once the time is over and their names are free,
    the trainer pods are made again."""
    waiting = draft.status.waiting_for_room
    assert waiting is not None and waiting.held_back_until is not None
    draft = _with_deadline(draft, observed, frozen, waiting.since, now)
    if draft.stage is Stage.FINISHED:
        return draft
    draft = _deleting_given_back(draft, observed)
    left = (waiting.held_back_until - now).total_seconds()
    ending = [pod for pod in draft.facts.gang.values() if _is_given_back(pod, draft)]
    if left <= 0 and not ending:
        tried = waiting.model_copy(update={"held_back_until": None, "tried_at": now})
        return draft.with_status(waiting_for_room=tried)
    if left > 0:
        known = condition(draft.status, ConditionType.RUNNING)
        message = (
            known.message if known and known.reason == Reason.WAITING_FOR_ROOM else "pods are made later"
        )
        return replace(draft, waits_for=message).waking_after(left)
    pod = ending[0]
    which = f"trainer pod {pod.name}{on_node(pod)}, which was given back,"
    message = f"the pods are made again once {which} has ended"
    return waiting_for_end(draft, pod, now, message=message)


def _deleting_given_back(draft: Draft, observed: Observed) -> Draft:
    pods = (*draft.facts.gang.values(), *observed.rollouts)
    return draft.deleting_pods(pod for pod in pods if _is_given_back(pod, draft))


def _is_given_back(pod: PodView, draft: Draft) -> bool:
    """An operator with an old status must not take the pods that came afterwards for those given back."""
    return pod.given_back < draft.status.given_back


def _what_was_missing(draft: Draft, observed: Observed) -> str:
    blocker, refusal = draft.facts.trainer_blocker or draft.facts.engine_blocker, observed.remembered.refusal
    if blocker:
        return blocker.message_with_pod
    if refusal:
        return refusal.why.message
    return "the scheduler gave no reason"


def _with_deadline(
    draft: Draft, observed: Observed, frozen: FrozenJob, since: datetime, now: datetime
) -> Draft:
    """`schedulingDeadlineSeconds`, where it is set, from the time at which the attempt began to wait."""
    deadline = frozen.spec.scheduling_deadline_seconds
    held_up = _why_no_room(draft, observed)
    if deadline is None or held_up is None:
        return draft
    left = deadline - (now - since).total_seconds()
    if left > 0:
        return draft.waking_after(left)
    if not draft.is_held_back and has_not_tried(draft, observed, frozen):
        return draft
    limit = f"schedulingDeadlineSeconds ({deadline})"
    missed = f"attempt {draft.status.attempt} has waited for room longer than {limit}"
    return fail_at_deadline(
        draft, observed, now, held_up=held_up, reason=Reason.SCHEDULING_DEADLINE_EXCEEDED, missed=missed
    )


def _why_no_room(draft: Draft, observed: Observed) -> Condition | None:
    """The condition that says what this attempt waits for."""
    if draft.status.attempt != observed.job.status.attempt:
        return None
    has_gang = draft.facts.gang_room_at is not None and not draft.is_held_back
    return unmet(observed.job.status, ConditionType.ROLLOUT_READY if has_gang else ConditionType.RUNNING)
