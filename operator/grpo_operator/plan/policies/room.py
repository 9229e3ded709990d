"""Policies: an attempt waits for room for as long as it may, and keeps no nodes that are not enough for it.

Without a gang scheduler two jobs can each get half of the GPUs and wait for the other half. One of them has
to let go. How long it holds its nodes and then does without has jitter, so that two jobs neither let go nor
come back together; it is derived from the job's uid and from how often it has given back, so that every
operator comes to the same times.
"""

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.v1alpha1.status import Condition, ConditionType, WaitingForRoom
from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.conditions import condition
from grpo_operator.plan.draft import Draft, Policy, Stage
from grpo_operator.plan.ends import fail_at_deadline, unmet
from grpo_operator.plan.facts import FirstStep, has_reported
from grpo_operator.plan.waiting import on_node, waiting_for_end
from grpo_operator.settings import GiveBackTimes

_LONGEST_HOLD_FACTOR = 4


def wait_for_room(times: GiveBackTimes) -> Policy:
    """Room is a node for every trainer pod and, in mode Disaggregated, for one rollout pod.

    An attempt that has only a part of it gives that back after a while, so that of two jobs which wait for
    each other's nodes one can run, and makes its pods again later: the same attempt, nothing counted. The
    decision is in status before a pod is deleted, and status distinguishes the pods that were given back from
    those that come after them. A job that may be training gives nothing back."""

    def wait(draft: Draft, observed: Observed, now: datetime) -> Draft:
        if draft.stage is Stage.HELD_BACK:
            return _held_back(draft, observed, now)
        return _waiting(draft, observed, now, times)

    return wait


def _held_back(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Delete what is left of the pods that were given back. Once the time is over and their names are free,
    the trainer pods are made again."""
    waiting = draft.status.waiting_for_room
    assert waiting is not None and waiting.held_back_until is not None
    draft = _with_deadline(draft, observed, waiting.since, now)
    if draft.stage is Stage.ENDED:
        return draft
    draft = _deleting_given_back(draft, observed)
    left = (waiting.held_back_until - now).total_seconds()
    ending = [pod for pod in draft.facts.gang.values() if _is_given_back(pod, draft)]
    if left <= 0 and not ending:
        tried = waiting.model_copy(update={"held_back_until": None, "tried_at": now})
        return replace(draft.with_status(waiting_for_room=tried, starting_since=None), stage=Stage.ACTIVE)
    if left > 0:
        known = condition(draft.status, ConditionType.RUNNING)
        message = (
            known.message if known and known.reason == Reason.WAITING_FOR_ROOM else "pods are made later"
        )
        return replace(draft, waits_for=_without_room(message)).waking_after(left)
    pod = ending[0]
    which = f"trainer pod {pod.name}{on_node(pod)}, which was given back,"
    message = f"the pods are made again once {which} has ended"
    return waiting_for_end(draft, pod, now, _without_room(message))


def _without_room(message: str) -> ReasonMessage:
    return ReasonMessage(Reason.WAITING_FOR_ROOM, message)


def _waiting(draft: Draft, observed: Observed, now: datetime, times: GiveBackTimes) -> Draft:
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
    draft = _with_deadline(draft, observed, known.since, now)
    if draft.stage is Stage.ENDED or draft.waits_for:
        return draft
    left = _seconds_to_hold(draft, observed, now, hold_seconds=times.hold_seconds)
    if left is not None and left <= 0:
        return _give_back(draft, observed, now, times)
    return draft if left is None else draft.waking_after(left)


def _give_back(draft: Draft, observed: Observed, now: datetime, times: GiveBackTimes) -> Draft:
    waiting = draft.status.waiting_for_room or WaitingForRoom(since=now)
    until = now + timedelta(seconds=_jittered(times.hold_back_seconds, draft, purpose="hold back"))
    # what this attempt reported was about pods that go now
    is_own = has_reported(draft.status, attempt=draft.status.attempt)
    draft = draft.with_status(
        policy_version="" if is_own else draft.status.policy_version,
        given_back=draft.status.given_back + 1,
        starting_since=None,
        waiting_for_room=waiting.model_copy(update={"held_back_until": until}),
    )
    message = (
        f"not all pods that attempt {draft.status.attempt} needs found a node, so it gave the others' nodes "
        f"back and makes its pods again at {until:%Y-%m-%dT%H:%M:%SZ}: {_what_was_missing(draft, observed)}"
    )
    draft = _deleting_given_back(draft, observed)
    held = replace(draft, stage=Stage.HELD_BACK, waits_for=_without_room(message))
    return held.waking_after((until - now).total_seconds())


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


def _with_deadline(draft: Draft, observed: Observed, since: datetime, now: datetime) -> Draft:
    """`schedulingDeadlineSeconds`, where it is set, from the time at which the attempt began to wait."""
    deadline = draft.snapshot.spec.scheduling_deadline_seconds
    held_up = _why_no_room(draft, observed)
    if deadline is None or held_up is None:
        return draft
    left = deadline - (now - since).total_seconds()
    if left > 0:
        return draft.waking_after(left)
    if draft.stage is not Stage.HELD_BACK and _has_not_tried(draft, observed):
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
    has_gang = draft.facts.gang_room_at is not None and draft.stage is not Stage.HELD_BACK
    return unmet(observed.job.status, ConditionType.ROLLOUT_READY if has_gang else ConditionType.RUNNING)


def _seconds_to_hold(draft: Draft, observed: Observed, now: datetime, *, hold_seconds: float) -> float | None:
    """How long this attempt, which lacks room, keeps the nodes that it has. None when it has none, and when
    something else is to happen first: what is missing has not been tried, or a pod has failed."""
    gang = draft.facts.gang.values()
    engines = [pod for pod in observed.rollouts if pod.is_alive]
    has_nodes = any(pod.scheduled_at for pod in (*gang, *engines))
    if not has_nodes or any(pod.has_failed for pod in gang) or _has_not_tried(draft, observed):
        return None
    waiting = draft.status.waiting_for_room
    first_node_at = min((pod.scheduled_at for pod in gang if pod.scheduled_at), default=None)
    times = [waiting.tried_at if waiting else None, first_node_at or draft.facts.first_pod_at]
    if draft.facts.gang_room_at:
        first_engine_at = min((pod.created_at for pod in engines if pod.created_at), default=None)
        times += [draft.facts.gang_room_at, first_engine_at]
    since = max((at for at in times if at), default=now)
    factor = min(2 ** min(draft.status.given_back, 8), _LONGEST_HOLD_FACTOR)
    hold = _jittered(hold_seconds * factor, draft, purpose="hold")
    return hold - (now - since).total_seconds()


def _jittered(seconds: float, draft: Draft, *, purpose: str) -> int:
    """Once to twice as long, different for each job and each time."""
    key = f"{draft.snapshot.uid}/{draft.status.attempt}/{draft.status.given_back}/{purpose}"
    fraction = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) / 2**32
    return round(seconds + seconds * fraction)


def _has_not_tried(draft: Draft, observed: Observed) -> bool:
    """Whether this process has not yet tried to make or delete what is due. It may have been away for hours,
    and must try before it draws a conclusion."""
    facts = draft.facts
    if facts.earlier:
        return not all(pod.is_deleting for pod in facts.earlier)
    num_engines = sum(pod.is_alive for pod in observed.rollouts)
    has_no_engine_pods = facts.gang_room_at is not None and draft.snapshot.has_rollout and num_engines == 0
    return (bool(facts.missing) or has_no_engine_pods) and observed.remembered.refusal is None
