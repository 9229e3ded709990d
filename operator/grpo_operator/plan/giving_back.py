"""When a job that holds some of the nodes it needs gives them back, and for how long. Pure.

Without a gang scheduler two jobs can each get half of the GPUs and wait for the other half. One of them has
to let go. Both times have jitter, so that two jobs neither let go nor come back together; it is derived from
the job's uid and from how often it has given back, so that every operator comes to the same times.
"""

import hashlib
from datetime import datetime

from grpo_operator.children.frozen_job import FrozenJob
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft

_LONGEST_HOLD_FACTOR = 4


def seconds_to_hold(
    draft: Draft, observed: Observed, frozen: FrozenJob, now: datetime, *, hold_seconds: float
) -> float | None:
    """How long this attempt, which lacks room, keeps the nodes that it has. None when it has none, and when
    something else is to happen first: what is missing has not been tried, or a pod has failed."""
    gang = draft.facts.gang.values()
    engines = [pod for pod in observed.rollouts if pod.is_alive]
    has_nodes = any(pod.scheduled_at for pod in (*gang, *engines))
    if not has_nodes or any(pod.has_failed for pod in gang) or has_not_tried(draft, observed, frozen):
        return None
    waiting = draft.status.waiting_for_room
    first_node_at = min((pod.scheduled_at for pod in gang if pod.scheduled_at), default=None)
    times = [waiting.tried_at if waiting else None, first_node_at or draft.facts.first_pod_at]
    if draft.facts.gang_room_at:
        first_engine_at = min((pod.created_at for pod in engines if pod.created_at), default=None)
        times += [draft.facts.gang_room_at, first_engine_at]
    since = max((at for at in times if at), default=now)
    factor = min(2 ** min(draft.status.given_back, 8), _LONGEST_HOLD_FACTOR)
    hold = jittered(hold_seconds * factor, draft, frozen, purpose="hold")
    return hold - (now - since).total_seconds()


def jittered(seconds: float, draft: Draft, frozen: FrozenJob, *, purpose: str) -> int:
    """Once to twice as long, different for each job and each time."""
    key = f"{frozen.uid}/{draft.status.attempt}/{draft.status.given_back}/{purpose}"
    fraction = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) / 2**32
    return round(seconds + seconds * fraction)


def has_not_tried(draft: Draft, observed: Observed, frozen: FrozenJob) -> bool:
    """Whether this process has not yet tried to make or delete what is due. It may have been away for hours,
    and must try before it draws a conclusion."""
    facts = draft.facts
    if facts.earlier:
        return not all(pod.is_deleting for pod in facts.earlier)
    num_engines = sum(pod.is_alive for pod in observed.rollouts)
    has_no_engine_pods = facts.gang_room_at is not None and frozen.has_rollout and num_engines == 0
    return (bool(facts.missing) or has_no_engine_pods) and observed.remembered.refusal is None
