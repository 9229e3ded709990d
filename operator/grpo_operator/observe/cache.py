"""The operator's copy of the cluster's objects: filled by lists, watch events and the answers to our
writes."""

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
        meta = item["metadata"]
        place = (meta["namespace"], meta["name"])
        known = self._items[kind].get(place)
        if resource_version(item) < self._deleted.get(meta["uid"], 0):
            return False
        if known is not None and resource_version(known) >= resource_version(item):
            return False
        if known is not None:
            self._drop(kind, place)
        self._deleted.pop(meta["uid"], None)
        self._items[kind][place] = kept(kind, item)
        owner = owner_uid(item)
        if owner:
            self._children.setdefault(owner, set()).add((kind, place))
        return True

    def remove(self, kind: Kind, item: KubeObject) -> None:
        """Forget an object that was deleted; another object of the same name stays."""
        meta = item["metadata"]
        place = (meta["namespace"], meta["name"])
        self._deleted[meta["uid"]] = resource_version(item)
        known = self._items[kind].get(place)
        if known is not None and known["metadata"]["uid"] == meta["uid"]:
            self._drop(kind, place)
            self._events.pop(meta["uid"], None)

    def replace(
        self, kind: Kind, items: Iterable[KubeObject], *, namespace: str | None, listed_at: int
    ) -> set[Key]:
        """Take in a full list of a kind in a namespace (None: all). Returns the jobs that changed.

        Objects missing from the list are dropped unless they are newer than the list.
        """
        changed: set[Key | None] = set()
        listed = {(item["metadata"]["namespace"], item["metadata"]["name"]): item for item in items}
        for item in listed.values():
            if self.put(kind, item):
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
