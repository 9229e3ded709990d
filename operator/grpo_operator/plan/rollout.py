"""Policy: every replica has a living rollout pod; a lost one is replaced at once."""

from datetime import datetime

from grpo_operator.children.rollout import rollout_pod
from grpo_operator.kinds import PODS
from grpo_operator.observed import Observed, PodView
from grpo_operator.plan.draft import Deletion, Draft, Stage

_SHORT_LIFE_SECONDS = 10.0
"""A pod that has ended is replaced at this age at the earliest."""
_LONGEST_REST_SECONDS = 160.0


def keep_replicas(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Create what is missing under a new name, delete what has ended or is too much (highest index first).

    A pod that is being deleted may hold its name for a long time on a lost node, so its replacement has
    the next incarnation in its name and does not wait. A name that was seen is not used again.
    """
    run = draft.run
    if draft.stage is not Stage.ACTIVE or run is None:
        return draft
    kept = set()
    for replica in range(run.num_rollout_pods):
        pods = [pod for pod in observed.rollouts if pod.position[0] == replica]
        holder = _holder(pods, now)
        if holder is None:
            used = [pod.position[1] for pod in pods]
            incarnation = max(*used, observed.highest_incarnations.get(replica, -1), -1) + 1
            draft = draft.creating(rollout_pod(run, replica=replica, incarnation=incarnation))
        else:
            kept.add(holder.uid)
            rest = _rest_seconds(holder, now)
            draft = draft.waking_after(rest) if rest > 0 else draft
    unneeded = [pod for pod in observed.rollouts if pod.uid not in kept]
    unneeded.sort(key=lambda pod: pod.position, reverse=True)
    return draft.deleting(*(Deletion(PODS, pod.name, pod.uid) for pod in unneeded if not pod.is_deleting))


def _holder(pods: list[PodView], now: datetime) -> PodView | None:
    """The one pod of a replica. There may be two alive for a moment when two operators replaced the same
    pod: then the one that is ready stays, else the older."""
    standing = [pod for pod in pods if is_alive(pod) or _rest_seconds(pod, now) > 0]
    return min(standing, key=lambda pod: (pod.is_over, not pod.is_ready, pod.position), default=None)


def _rest_seconds(pod: PodView, now: datetime) -> float:
    """How long a pod that ended soon after its creation still holds its replica's place: a node that refuses
    every pod in the moment it comes must not make us create them without rest. Each that is refused rests
    twice as long as the one before it, up to a limit."""
    if not pod.is_over or pod.is_deleting or pod.created_at is None:
        return 0.0
    longer = 2.0 ** min(pod.position[1], 10) if is_refused(pod) else 1.0
    rest = min(_LONGEST_REST_SECONDS, _SHORT_LIFE_SECONDS * longer)
    age = (now - pod.created_at).total_seconds()
    return rest - age if age >= 0 else 0.0  # clocks that disagree must not make it wait


def is_refused(pod: PodView) -> bool:
    """Whether this pod has ended without having run."""
    return pod.is_over and pod.ending is None and pod.last_ending is None and pod.restarts == 0


def is_alive(pod: PodView) -> bool:
    """Whether this pod still counts as its replica's engine."""
    return not pod.is_over and not pod.is_deleting
