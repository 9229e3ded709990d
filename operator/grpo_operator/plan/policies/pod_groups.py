"""Policy: the PodGroup that a gang scheduler asks for is there before its pods, and goes after them.

There is one for the trainer pods of an attempt and one for each engine of several pods, and never one over
both: engines are made once the trainer pods have nodes.
"""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.environment import Role
from grpo_operator.children.child import Child
from grpo_operator.children.gangs import GangScheduler, gang_scheduler_of, group_size, pod_group, woken
from grpo_operator.children.names import Names, rollout_position, trainer_position
from grpo_operator.children.pod import pod_template_of
from grpo_operator.cluster.kinds import PODS
from grpo_operator.observe.observed import Observed, PodView
from grpo_operator.plan.draft import Deletion, Draft, Stage


def keep_pod_groups(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Create the PodGroups of pods that come or are there, and delete those whose pods have all ended."""
    scheduler = gang_scheduler_of(draft.known_snapshot) if draft.known_snapshot else None
    if scheduler is None and not observed.pod_groups:
        return draft
    alive, coming = _alive(observed), _coming(draft, observed)
    unneeded = [
        group
        for group in observed.pod_groups.values()
        if group.name not in alive and group.name not in coming and not group.is_deleting
    ]
    draft = draft.deleting(*(Deletion(group.kind, group.name, group.uid) for group in unneeded))
    if scheduler is None or draft.stage not in (Stage.ACTIVE, Stage.HELD_BACK):
        return draft
    roles = coming | {name: role for name, (role, _) in alive.items()}
    needed = {name: role for name, role in roles.items() if group_size(draft.snapshot, role=role) > 1}
    missing = (
        _pod_group(draft, scheduler, name=name, role=role)
        for name, role in needed.items()
        if name not in observed.pod_groups
    )
    draft = replace(draft, create=(*missing, *draft.create))
    return _waking(draft, observed, scheduler, now) if scheduler.wake_seconds is not None else draft


def _pod_group(draft: Draft, scheduler: GangScheduler, *, name: str, role: Role) -> Child:
    template = pod_template_of(draft.snapshot.spec, role=role)
    return pod_group(draft.snapshot, scheduler, name=name, role=role, template=template)


def _waking(draft: Draft, observed: Observed, scheduler: GangScheduler, now: datetime) -> Draft:
    """A scheduler that has turned a group away may not notice that there is room for it by now. While all
    pods of a group wait for nodes, its PodGroup is written anew from time to time."""
    assert scheduler.wake_seconds is not None
    for name, (role, pods) in _alive(observed).items():
        found = observed.pod_groups.get(name)
        is_whole = len(pods) == group_size(draft.snapshot, role=role)
        is_waiting = is_whole and all(pod.is_alive and pod.scheduled_at is None for pod in pods)
        if found is None or found.is_deleting or not is_waiting:
            continue
        times = [found.woken_at, found.created_at, *(pod.created_at for pod in pods)]
        since = min(max((at for at in times if at), default=now), now)  # clocks may disagree
        left = scheduler.wake_seconds - (now - since).total_seconds()
        if left <= 0:
            draft = draft.creating(woken(_pod_group(draft, scheduler, name=name, role=role), now=now))
            left = scheduler.wake_seconds
        draft = draft.waking_after(left)
    return draft


def _alive(observed: Observed) -> dict[str, tuple[Role, list[PodView]]]:
    """The groups of pods that have not ended, by name."""
    names = Names.of(job=observed.job.name, uid=observed.job.uid)
    found: dict[str, tuple[Role, list[PodView]]] = {}
    for pod in (*observed.trainers, *(member for engine in observed.rollouts for member in engine.pods)):
        if not pod.is_over:
            name, role = _group_of(pod.name, names)
            found.setdefault(name, (role, []))[1].append(pod)
    return found


def _coming(draft: Draft, observed: Observed) -> dict[str, Role]:
    """The groups of pods that this plan makes, by name."""
    names = Names.of(job=observed.job.name, uid=observed.job.uid)
    return dict(_group_of(child.name, names) for child in draft.create if child.kind == PODS)


def _group_of(pod: str, names: Names) -> tuple[str, Role]:
    """The group that a pod of this name is in, with the role of its pods."""
    if trainer := trainer_position(pod):
        return names.trainer_group(attempt=trainer[0]), Role.TRAINER
    rollout = rollout_position(pod)
    assert rollout is not None
    return names.engine_group(replica=rollout[0], incarnation=rollout[1]), Role.ROLLOUT
