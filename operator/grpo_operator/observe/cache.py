"""The operator's copy of the cluster's objects: filled by lists, watch events and the answers to our
writes."""

import sys
from collections.abc import Iterable

from grpo_operator.cluster.kinds import (
    CONFIG_MAPS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    WATCHED,
    Kind,
    KubeObject,
)
from grpo_operator.observe.kept import kept
from grpo_operator.observe.served_schema import EVERYTHING

_AFTER_ALL = sys.maxsize
"""A version after every state of an object."""

Key = tuple[str, str]
"""(namespace, name) of a job."""

ChildName = tuple[Kind, str]
"""A child of a job, in the job's namespace."""


def job_key(kind: Kind, item: KubeObject) -> Key | None:
    """The job that an object is, or belongs to; None for an object that is not ours."""
    meta = item["metadata"]
    if kind == JOBS:
        return meta["namespace"], meta["name"]
    owner = _owner(item)
    return (meta["namespace"], owner["name"]) if owner else None


def owner_uid(item: KubeObject) -> str | None:
    """Uid of the GRPOJob that controls this object."""
    owner = _owner(item)
    return str(owner["uid"]) if owner else None


def _owner(item: KubeObject) -> KubeObject | None:
    for reference in item["metadata"].get("ownerReferences", ()):
        if (
            reference.get("controller")
            and reference["kind"] == JOBS.name
            and reference["apiVersion"].startswith(f"{JOBS.group}/")
        ):
            found: KubeObject = reference
            return found
    return None


def resource_version(item: KubeObject) -> int:
    """Position of this state of the object in the cluster's history."""
    return int(item["metadata"]["resourceVersion"])


def _place(item: KubeObject) -> Key:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _contents(events: Iterable[KubeObject]) -> set[tuple[str, str]]:
    return {(event.get("reason", ""), event.get("message", "")) for event in events}


class Cache:
    """Newest known state of every watched object. Not thread-safe: belongs to one event loop.

    States may arrive late and out of order, such as a watch event from before our own write, or a list that
    began before a create. So an older state never replaces a newer one, and a state from before the deletion
    of an object is not taken in again. A state that is as new as its deletion shows that it was none: a watch
    with a label selector also says DELETED when an object loses the label.
    """

    def __init__(self) -> None:
        self._items: dict[Kind, dict[Key, KubeObject]] = {kind: {} for kind in WATCHED}
        self._children: dict[str, set[tuple[Kind, Key]]] = {}
        self._deleted: dict[str, int] = {}
        """Uid of a deleted object -> version at which it was deleted."""
        self._events: dict[str, tuple[KubeObject, ...]] = {}
        self.served_schema = EVERYTHING
        """What the API server knows of a GRPOJob."""

    def put(self, kind: Kind, item: KubeObject) -> bool:
        """Take in a state of an object. Returns False when a newer one is known."""
        if not self._is_newer(kind, item):
            return False
        self._store(kind, kept(kind, item))
        return True

    def keep(self, kind: Kind, item: KubeObject) -> KubeObject:
        """What to hold of a listed object until `replace`: what is there already, if that is as new."""
        return kept(kind, item) if self._is_newer(kind, item) else self._known(kind, item) or item

    def _is_newer(self, kind: Kind, item: KubeObject) -> bool:
        """Whether a state of an object is newer than the known one, and than its deletion."""
        if resource_version(item) < self._deleted.get(item["metadata"]["uid"], 0):
            return False
        known = self._known(kind, item)
        return known is None or resource_version(known) < resource_version(item)

    def _known(self, kind: Kind, item: KubeObject) -> KubeObject | None:
        return self._items[kind].get(_place(item))

    def _store(self, kind: Kind, item: KubeObject) -> None:
        place = _place(item)
        if place in self._items[kind]:
            self._drop(kind, place)
        self._deleted.pop(item["metadata"]["uid"], None)
        self._items[kind][place] = item
        owner = owner_uid(item)
        if owner:
            self._children.setdefault(owner, set()).add((kind, place))

    def remove(self, kind: Kind, item: KubeObject) -> None:
        """Forget an object that was deleted; another object of the same name stays."""
        uid = item["metadata"]["uid"]
        self._deleted[uid] = resource_version(item)
        known = self._known(kind, item)
        if known is not None and known["metadata"]["uid"] == uid:
            self._drop(kind, _place(item))
            self._events.pop(uid, None)

    def mark_gone(self, kind: Kind, place: Key, *, uid: str) -> None:
        """Forget an object that the API server no longer has."""
        self._deleted[uid] = _AFTER_ALL
        known = self._items[kind].get(place)
        if known is not None and known["metadata"]["uid"] == uid:
            self._drop(kind, place)
            self._events.pop(uid, None)

    def replace(
        self, kind: Kind, items: Iterable[KubeObject], *, namespace: str | None, listed_at: int
    ) -> set[Key]:
        """Take in a full list of a kind in a namespace (None: all). Returns the jobs that changed.

        `items` are as `keep` returned them. Objects missing from the list are dropped unless they are newer
        than the list.
        """
        changed: set[Key | None] = set()
        listed = {_place(item): item for item in items}
        for item in listed.values():
            if self._is_newer(kind, item):
                self._store(kind, item)
                changed.add(job_key(kind, item))
        for place, item in list(self._items[kind].items()):
            is_covered = namespace is None or place[0] == namespace
            if is_covered and place not in listed and resource_version(item) <= listed_at:
                changed.add(job_key(kind, item))
                self._drop(kind, place)
                self._events.pop(item["metadata"]["uid"], None)
        return {key for key in changed if key is not None}

    def forget_deleted_uids(self) -> None:
        """Drop the uids of deleted objects, after a full resync: states from before it no longer arrive."""
        self._deleted.clear()

    def job(self, key: Key) -> KubeObject | None:
        """The job of this name."""
        return self._items[JOBS].get(key)

    def job_keys(self) -> tuple[Key, ...]:
        """Every job there is."""
        return tuple(self._items[JOBS])

    def children(self, uid: str, kind: Kind) -> tuple[KubeObject, ...]:
        """Objects of a kind that the job with this uid controls, by name."""
        places = sorted(place for child_kind, place in self._children.get(uid, ()) if child_kind == kind)
        return tuple(self._items[kind][place] for place in places)

    def child_names(self, uid: str) -> frozenset[ChildName]:
        """Every object that the job with this uid controls."""
        return frozenset((kind, name) for kind, (_, name) in self._children.get(uid, ()))

    def pods(self, uid: str) -> tuple[KubeObject, ...]:
        """Pods of a job."""
        return self.children(uid, PODS)

    def every_pod(self) -> tuple[KubeObject, ...]:
        """Pods of all jobs."""
        return tuple(self._items[PODS].values())

    def put_events(self, pod: KubeObject, events: tuple[KubeObject, ...]) -> bool:
        """Take in the Events about a pod. Returns False when they say nothing new, or the pod is gone."""
        meta = pod["metadata"]
        known = self._items[PODS].get((meta["namespace"], meta["name"]))
        if known is None or known["metadata"]["uid"] != meta["uid"]:
            return False
        before, self._events[meta["uid"]] = self.events(meta["uid"]), events
        return _contents(before) != _contents(events)

    def events(self, pod_uid: str) -> tuple[KubeObject, ...]:
        """Events about a pod; empty where they were not read."""
        return self._events.get(pod_uid, ())

    def services(self, uid: str) -> tuple[KubeObject, ...]:
        """Services of a job."""
        return self.children(uid, SERVICES)

    def config_maps(self, uid: str) -> tuple[KubeObject, ...]:
        """ConfigMaps of a job."""
        return self.children(uid, CONFIG_MAPS)

    def network_policies(self, uid: str) -> tuple[KubeObject, ...]:
        """NetworkPolicies of a job."""
        return self.children(uid, NETWORK_POLICIES)

    def _drop(self, kind: Kind, place: Key) -> None:
        item = self._items[kind].pop(place)
        owner = owner_uid(item)
        if owner and owner in self._children:
            self._children[owner].discard((kind, place))
            if not self._children[owner]:
                del self._children[owner]
