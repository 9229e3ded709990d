"""Policies: every replica has a living rollout pod, or as many as make up its engine, once the trainer gang
has nodes. A lost one is replaced at once, with all others of its engine, and one that hangs after a while."""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.endpoints import ROLLOUT_CONTAINER
from grpo_api.contract.environment import Role
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_operator.children.child import Child
from grpo_operator.children.names import rollout_slot
from grpo_operator.children.placement import placed
from grpo_operator.children.rollout import rollout_pod
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.observe.engine_pods import missing_members
from grpo_operator.observe.image_build import other_build, pinned_image
from grpo_operator.observe.observed import EngineView, Observed, Remembered
from grpo_operator.plan.draft import Draft
from grpo_operator.plan.hung_engines import hung_engines, seconds_until_replaced
from grpo_operator.plan.last_failure import PodRef, last_failure
from grpo_operator.plan.queue import may_have_engine, placement_of_engine
from grpo_operator.plan.waiting import early_end

OTHER_BUILD_SECONDS = 60.0
"""How long after a pod that ran another build of the image the next one is tried."""
_MIN_REPLACE_AGE_SECONDS = 10.0
"""A pod that has ended is replaced at this age at the earliest."""
_MAX_REPLACE_AGE_SECONDS = 160.0
"""The same for a pod that its node refused, like several before it."""


def replace_hung(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Give up the engine that has hung for longest, once that has lasted, with all its pods: `keep_replicas`
    then deletes them and makes others. The cause is in lastFailure before they go. It takes nothing from the
    job: the engine does no work, and its requests went to others when it was found."""
    found = next(iter(hung_engines(draft, observed)), None)
    if found is None:
        return draft
    wait = seconds_until_replaced(found, observed, now)
    if wait > 0:
        return draft.waking_after(wait)
    failure = last_failure(
        ReasonMessage(Reason.ENGINE_HUNG, found.cause),
        attempt=draft.status.attempt,
        pod=PodRef(Role.ROLLOUT, found.reported.name, found.node, ROLLOUT_CONTAINER),
    )
    given_up = {found.engine.uid: found.cause}
    return replace(draft.with_status(last_failure=failure), given_up_engines=given_up)


def keep_replicas(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Create what is missing under a new name, delete what has ended or is too much (highest index first).

    A pod that is being deleted may hold its name for a long time on a lost node, so its replacement has
    the next incarnation in its name and does not wait. A name that was seen is not used again, except for a
    pod of a new engine that could not be made: the engine waits for it.

    Nothing is created before every trainer pod has a node: engines without a trainer would only keep nodes
    from it, and from other jobs.
    """
    snapshot = draft.snapshot
    can_create = draft.facts.gang_room_at is not None
    highest = observed.remembered.highest_incarnations
    kept = set()
    for replica in range(snapshot.num_engines):
        if not may_have_engine(draft, observed, replica):
            waits = placement_of_engine(draft, observed, replica)
            if isinstance(waits, ReasonMessage) and draft.rollout_waits_for is None:
                draft = replace(draft, rollout_waits_for=waits)
            continue
        engines = [engine for engine in observed.rollouts if engine.position[0] == replica]
        useful = [
            engine
            for engine in engines
            if engine.uid not in draft.given_up_engines
            and not _is_useless(engine, draft)
            and not _has_lost_a_member(engine, snapshot, observed.remembered)
        ]
        holder = _holder(useful, now)
        wait = _seconds_until_other_build_is_over(draft, observed, replica, now)
        ended = early_end(observed, rollout_slot(replica), now)
        if holder is None and wait > 0:
            why = observed.remembered.other_builds[replica].message
            blocked = ReasonMessage(Reason.IMAGE_CHANGED, f"rollout {why}")
            draft = replace(draft, rollout_waits_for=blocked).waking_after(wait)
        elif holder is None and can_create and ended is not None:
            ended_early, seconds = ended
            draft = replace(draft, rollout_waits_for=ended_early, early_end=ended_early).waking_after(seconds)
        elif holder is None and can_create:
            incarnation = highest.get(replica, -1) + 1
            where = placement_of_engine(draft, observed, replica)
            if isinstance(where, ReasonMessage):
                draft = replace(draft, rollout_waits_for=where)
                continue
            made = _pods_of(draft, snapshot, replica=replica, incarnation=incarnation)
            draft = draft.creating(*(placed(pod, where) for pod in made))
        elif holder is not None:
            kept.add(holder.uid)
            where = placement_of_engine(draft, observed, replica)
            is_open = can_create and not holder.is_whole and holder.is_alive
            if is_open and not isinstance(where, ReasonMessage):
                missing = missing_members(holder, snapshot.names, num_nodes=snapshot.nodes_per_engine)
                made = _pods_of(draft, snapshot, replica=replica, incarnation=holder.position[1])
                draft = draft.creating(*(placed(child, where) for child in made if child.name in missing))
            wait = _seconds_until_replaced(holder, now)
            draft = draft.waking_after(wait) if wait > 0 else draft
    unneeded = [pod for pod in observed.rollouts if pod.uid not in kept]
    unneeded.sort(key=lambda pod: pod.position, reverse=True)
    return draft.deleting_pods(unneeded)


def _pods_of(draft: Draft, snapshot: JobSnapshot, *, replica: int, incarnation: int) -> tuple[Child, ...]:
    return tuple(
        rollout_pod(
            snapshot,
            replica=replica,
            incarnation=incarnation,
            node=node,
            given_back=draft.status.given_back,
        )
        for node in range(snapshot.nodes_per_engine)
    )


def _is_useless(engine: EngineView, draft: Draft) -> bool:
    """Whether a pod runs another build of the image than the run. One that the trainer has admitted stays,
    because it works."""
    return not engine.is_ready and any(other_build(pod, draft.status) for pod in engine.pods)


def _has_lost_a_member(engine: EngineView, snapshot: JobSnapshot, remembered: Remembered) -> bool:
    """Whether a pod of an engine is gone, and not only yet to be made: another cannot take its place among
    those that have met. It was there if this process has seen it. Of an engine that is older than this
    process nobody knows, and it counts as gone."""
    if engine.is_whole:
        return False
    missing = missing_members(engine, snapshot.names, num_nodes=snapshot.nodes_per_engine)
    return engine.position in remembered.found_engines or any(
        name in remembered.seen_pods for name in missing
    )


def _seconds_until_other_build_is_over(
    draft: Draft, observed: Observed, replica: int, now: datetime
) -> float:
    """How long a replica stays without a pod because its last one ran another build. Not at all where new
    pods get the run's image by digest."""
    found = observed.remembered.other_builds.get(replica)
    if found is None or pinned_image(draft.status.image, draft.status.image_id) is not None:
        return 0.0
    return OTHER_BUILD_SECONDS - (now - found.seen_at).total_seconds()


def _holder(engines: list[EngineView], now: datetime) -> EngineView | None:
    """The one engine of a replica. There may be two alive for a moment when two operators replaced the same
    one: then the one that is ready stays, else the older."""
    standing = [each for each in engines if each.is_alive or _seconds_until_replaced(each, now) > 0]
    return min(standing, key=lambda each: (each.is_over, not each.is_ready, each.position), default=None)


def _seconds_until_replaced(engine: EngineView, now: datetime) -> float:
    """How long an engine that ended soon after its creation still holds its replica's slot. A node that
    refuses every pod at once must not make us create pods without pause, so each refused pod holds the slot
    twice as long as the one before it, up to a limit. So does an engine of several pods, which no kubelet
    restarts with pauses of its own."""
    if not engine.is_over or engine.is_deleting or engine.created_at is None:
        return 0.0
    has_pauses = engine.has_never_run or engine.has_several_pods
    factor = 2.0 ** min(engine.position[1], 10) if has_pauses else 1.0
    shortest_life = min(_MAX_REPLACE_AGE_SECONDS, _MIN_REPLACE_AGE_SECONDS * factor)
    age = (now - engine.created_at).total_seconds()
    return shortest_life - age if age >= 0 else 0.0  # clocks that disagree must not make it wait
