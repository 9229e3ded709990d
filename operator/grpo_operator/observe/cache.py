"""The operator's copy of the cluster's objects: filled by lists, watch events and the answers to our
writes."""

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from grpo_operator.cluster.kinds import (
    CONFIG_MAPS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    WORKLOADS,
    Kind,
    KubeObject,
    is_pod_group,
)
from grpo_operator.observe.served_schema import EVERYTHING
from grpo_operator.observe.stored import Identity, Stored, key_of, owner_of, store, version_of

_AFTER_ALL = sys.maxsize
"""A version after every state of an object."""

Key = tuple[str, str]
"""(namespace, name) of a job."""

ChildName = tuple[Kind, str]
"""A child of a job, in the job's namespace."""


def job_key(kind: Kind, item: KubeObject) -> Key | None:
    """The job that an object is, or belongs to; None for an object that is not ours."""
    owner = owner_of(item)
    return _job_key(kind, key_of(item), owner["name"] if owner else None)


def owner_uid(item: KubeObject) -> str | None:
    """Uid of the GRPOJob that controls this object."""
    owner = owner_of(item)
    return str(owner["uid"]) if owner else None


def _job_key(kind: Kind, key: Key, owner: str | None) -> Key | None:
    if kind == JOBS:
        return key
    return (key[0], owner) if owner else None


def _contents(events: Iterable[KubeObject]) -> set[tuple[str, str]]:
    return {(event.get("reason", ""), event.get("message", "")) for event in events}


class Cache:
    """Newest known state of every watched object. Not thread-safe: belongs to one event loop.

    States may arrive late and out of order, such as a watch event from before our own write, or a list that
    began before a create. So an older state never replaces a newer one, and a state from before the deletion
    of an object is not taken in again. A state of the same version as a deletion shows that the object
    exists: a watch with a label selector also says DELETED when an object loses the label.
    """

    def __init__(self) -> None:
        self._items: defaultdict[Kind, dict[Key, Stored]] = defaultdict(dict)
        self._children: dict[Identity, set[ChildName]] = {}
        self._deleted: dict[str, int] = {}
        """Uid of a deleted object -> version at which it was deleted."""
        self._events: dict[str, tuple[KubeObject, ...]] = {}
        self.queue_problems: dict[str | None, str] = {}
        """Why the Workloads of a namespace are not known, or of all (None), where they are not."""
        self.cluster_objects: dict[tuple[Kind, str], KubeObject | str] = {}
        """Objects of no namespace that were read, each as it is or why it could not be read."""
        self.queue_positions: dict[Key, tuple[datetime, Mapping[str, int]]] = {}
        """Of each LocalQueue, by namespace and name: when it was read, and how many Workloads are before each
        of those that wait in it."""
        self.served_schema = EVERYTHING
        """What the API server knows of a GRPOJob."""
        self.shown_namespaces: frozenset[str] | None = None
        """Namespaces whose jobs are shown; None for all. The others are left out by their labels, and stored
        because these may change."""

    def put(self, kind: Kind, item: KubeObject) -> bool:
        """Take in a state of an object. Returns False when a newer one is known."""
        if not self._is_newer(kind, key_of(item), uid=item["metadata"]["uid"], version=version_of(item)):
            return False
        self._store(kind, store(kind, item))
        return True

    def keep(self, kind: Kind, item: KubeObject) -> Stored:
        """What to store of a listed object until `replace`: what is there already, if that is as new."""
        key = key_of(item)
        known = self._items[kind].get(key)
        if known is None or self._is_newer(kind, key, uid=item["metadata"]["uid"], version=version_of(item)):
            return store(kind, item)
        return known

    def _is_newer(self, kind: Kind, key: Key, *, uid: str, version: int) -> bool:
        """Whether a state of an object is newer than the known one, and than its deletion."""
        if version < self._deleted.get(uid, 0):
            return False
        known = self._items[kind].get(key)
        return known is None or known.version < version

    def _store(self, kind: Kind, item: Stored) -> None:
        if item.key in self._items[kind]:
            self._drop(kind, item.key)
        self._deleted.pop(item.uid, None)
        self._items[kind][item.key] = item
        if item.owner:
            self._children.setdefault(item.owner, set()).add((kind, item.key[1]))

    def remove(self, kind: Kind, item: KubeObject) -> None:
        """Forget an object that was deleted; another object of the same name stays."""
        self._forget(kind, key_of(item), uid=item["metadata"]["uid"], deleted_at=version_of(item))

    def mark_gone(self, kind: Kind, key: Key, *, uid: str) -> None:
        """Forget an object that the API server no longer has."""
        self._forget(kind, key, uid=uid, deleted_at=_AFTER_ALL)

    def _forget(self, kind: Kind, key: Key, *, uid: str, deleted_at: int) -> None:
        self._deleted[uid] = deleted_at
        known = self._items[kind].get(key)
        if known is not None and known.uid == uid:
            self._drop(kind, key)
            self._events.pop(uid, None)

    def replace(
        self, kind: Kind, items: Iterable[Stored], *, namespace: str | None, listed_at: int
    ) -> set[Key]:
        """Take in a full list of a kind in a namespace (None: all). Returns the jobs that changed.

        `items` are as `keep` returned them. Objects missing from the list are dropped unless they are newer
        than the list.
        """
        changed: set[Key | None] = set()
        listed = {item.key: item for item in items}
        for item in listed.values():
            if self._is_newer(kind, item.key, uid=item.uid, version=item.version):
                self._store(kind, item)
                changed.add(_job_key(kind, item.key, item.job[0] if item.job else None))
        for key, item in list(self._items[kind].items()):
            is_covered = namespace is None or key[0] == namespace
            if is_covered and key not in listed and item.version <= listed_at:
                changed.add(_job_key(kind, key, item.job[0] if item.job else None))
                self._drop(kind, key)
                self._events.pop(item.uid, None)
        return {key for key in changed if key is not None}

    def forget_deleted_uids(self) -> None:
        """Drop the uids of deleted objects, after a full resync: states from before it no longer arrive."""
        self._deleted.clear()

    def job(self, key: Key) -> KubeObject | None:
        """The job of this name."""
        stored = self._items[JOBS].get(key)
        return stored.read() if stored and self._is_shown(key[0]) else None

    def job_keys(self) -> tuple[Key, ...]:
        """Every job there is."""
        return tuple(key for key in self._items[JOBS] if self._is_shown(key[0]))

    def job_phases(self) -> tuple[str, ...]:
        """The phase of each job; empty of one without a status."""
        return tuple(self._items[JOBS][key].phase for key in self.job_keys())

    def left_out_namespaces(self) -> frozenset[str]:
        """Namespaces with jobs that are not shown."""
        return frozenset(key[0] for key in self._items[JOBS] if not self._is_shown(key[0]))

    def _is_shown(self, namespace: str) -> bool:
        return self.shown_namespaces is None or namespace in self.shown_namespaces

    def num_objects(self, kind: Kind) -> int:
        """How many objects of a kind there are."""
        return len(self._items.get(kind, ()))

    def children(self, job: Identity, kind: Kind) -> tuple[KubeObject, ...]:
        """Objects of a kind that a job controls, by name."""
        names = sorted(name for child_kind, name in self._children.get(job, ()) if child_kind == kind)
        return tuple(self._items[kind][job[0], name].read() for name in names)

    def child_names(self, job: Identity) -> frozenset[ChildName]:
        """Every object that a job controls."""
        return frozenset(self._children.get(job, ()))

    def pods(self, job: Identity) -> tuple[KubeObject, ...]:
        """Pods of a job."""
        return self.children(job, PODS)

    def pending_pods(self) -> tuple[KubeObject, ...]:
        """Pods of all jobs that have not started yet."""
        return tuple(
            stored.read()
            for stored in self._items[PODS].values()
            if stored.phase in ("", "Pending") and self._is_shown(stored.key[0])
        )

    def put_events(self, pod: KubeObject, events: tuple[KubeObject, ...]) -> bool:
        """Take in the Events about a pod. Returns False when they say nothing new, or the pod is gone."""
        meta = pod["metadata"]
        known = self._items[PODS].get((meta["namespace"], meta["name"]))
        if known is None or known.uid != meta["uid"]:
            return False
        before, self._events[meta["uid"]] = self.events(meta["uid"]), events
        return _contents(before) != _contents(events)

    def events(self, pod_uid: str) -> tuple[KubeObject, ...]:
        """Events about a pod; empty where they were not read."""
        return self._events.get(pod_uid, ())

    def services(self, job: Identity) -> tuple[KubeObject, ...]:
        """Services of a job."""
        return self.children(job, SERVICES)

    def config_maps(self, job: Identity) -> tuple[KubeObject, ...]:
        """ConfigMaps of a job, without those that are being deleted: whatever keeps one of them, it is no
        configuration any more."""
        found = self.children(job, CONFIG_MAPS)
        return tuple(config for config in found if "deletionTimestamp" not in config["metadata"])

    def network_policies(self, job: Identity) -> tuple[KubeObject, ...]:
        """NetworkPolicies of a job."""
        return self.children(job, NETWORK_POLICIES)

    def pod_groups(self, job: Identity) -> tuple[tuple[Kind, KubeObject], ...]:
        """PodGroups of a job, each with its kind."""
        kinds = {kind for kind, _ in self._children.get(job, ()) if is_pod_group(kind)}
        return tuple((kind, found) for kind in kinds for found in self.children(job, kind))

    def workloads(self, job: Identity) -> tuple[KubeObject, ...]:
        """Workloads of a job."""
        return self.children(job, WORKLOADS)

    def queue_problem(self, namespace: str) -> str:
        """Why the Workloads of a namespace are not known; empty where they are."""
        return self.queue_problems.get(None) or self.queue_problems.get(namespace, "")

    def num_before(self, workload: Key, *, queue: str) -> int | None:
        """How many Workloads of its queue are before a Workload; None where Kueue does not say it."""
        namespace, name = workload
        _, positions = self.queue_positions.get((namespace, queue), (None, {}))
        return positions.get(name)

    def _drop(self, kind: Kind, key: Key) -> None:
        owner = self._items[kind].pop(key).owner
        if owner in self._children:
            children = self._children[owner]
            children.discard((kind, key[1]))
            if not children:
                del self._children[owner]
