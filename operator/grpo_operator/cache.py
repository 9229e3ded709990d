"""The operator's own picture of the cluster: fed by lists, watch events and the answers to our writes."""

from collections.abc import Iterable

from grpo_operator.kinds import CONFIG_MAPS, JOBS, NETWORK_POLICIES, PODS, SERVICES, WATCHED, Kind, Manifest

Key = tuple[str, str]
"""(namespace, name) of a job."""


def job_key(kind: Kind, item: Manifest) -> Key | None:
    """The job an object is, or belongs to; None for somebody else's object."""
    meta = item["metadata"]
    if kind == JOBS:
        return meta["namespace"], meta["name"]
    owner = _owner(item)
    return (meta["namespace"], owner["name"]) if owner else None


def owner_uid(item: Manifest) -> str | None:
    """Uid of the GRPOJob that controls this object."""
    owner = _owner(item)
    return str(owner["uid"]) if owner else None


def _owner(item: Manifest) -> Manifest | None:
    for reference in item["metadata"].get("ownerReferences", ()):
        if (
            reference.get("controller")
            and reference["kind"] == JOBS.name
            and reference["apiVersion"].startswith(f"{JOBS.group}/")
        ):
            found: Manifest = reference
            return found
    return None


def resource_version(item: Manifest) -> int:
    """Position of this state of the object in the cluster's history."""
    return int(item["metadata"]["resourceVersion"])


def _said(events: Iterable[Manifest]) -> set[tuple[str, str]]:
    return {(event.get("reason", ""), event.get("message", "")) for event in events}


class Cache:
    """Newest known state of every watched object. Not thread-safe: belongs to one event loop.

    News may come late and out of order (a watch event of before our own write, a list that began before a
    create): an older state never replaces a newer one, and a uid that was deleted never comes back.
    """

    def __init__(self) -> None:
        self._items: dict[Kind, dict[Key, Manifest]] = {kind: {} for kind in WATCHED}
        self._children: dict[str, set[tuple[Kind, Key]]] = {}
        self._gone: set[str] = set()
        self._events: dict[str, tuple[Manifest, ...]] = {}

    def put(self, kind: Kind, item: Manifest) -> bool:
        """Take a state of an object in; False when it is old news."""
        meta = item["metadata"]
        place = (meta["namespace"], meta["name"])
        known = self._items[kind].get(place)
        if meta["uid"] in self._gone:
            return False
        if known is not None and resource_version(known) >= resource_version(item):
            return False
        if known is not None:
            self._forget(kind, place)
        self._items[kind][place] = item
        owner = owner_uid(item)
        if owner:
            self._children.setdefault(owner, set()).add((kind, place))
        return True

    def remove(self, kind: Kind, item: Manifest) -> None:
        """Forget an object that was deleted; another object of the same name stays."""
        meta = item["metadata"]
        place = (meta["namespace"], meta["name"])
        self._gone.add(meta["uid"])
        known = self._items[kind].get(place)
        if known is not None and known["metadata"]["uid"] == meta["uid"]:
            self._forget(kind, place)
            self._events.pop(meta["uid"], None)

    def replace(
        self, kind: Kind, items: Iterable[Manifest], *, namespace: str | None, listed_at: int
    ) -> set[Key]:
        """Take a full list of a kind in a namespace (None: all) in; returns the jobs that changed.

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
                self._forget(kind, place)
                self._events.pop(item["metadata"]["uid"], None)
        return {key for key in changed if key is not None}

    def forget_tombstones(self) -> None:
        """Called after a full resync, when late news of before it can no longer arrive."""
        self._gone.clear()

    def job(self, key: Key) -> Manifest | None:
        """The job of this name."""
        return self._items[JOBS].get(key)

    def job_keys(self) -> tuple[Key, ...]:
        """Every job there is."""
        return tuple(self._items[JOBS])

    def children(self, uid: str, kind: Kind) -> tuple[Manifest, ...]:
        """Objects of a kind that the job with this uid controls, by name."""
        places = sorted(place for of, place in self._children.get(uid, ()) if of == kind)
        return tuple(self._items[kind][place] for place in places)

    def pods(self, uid: str) -> tuple[Manifest, ...]:
        """Pods of a job."""
        return self.children(uid, PODS)

    def every_pod(self) -> tuple[Manifest, ...]:
        """Pods of all jobs."""
        return tuple(self._items[PODS].values())

    def put_events(self, pod: Manifest, events: tuple[Manifest, ...]) -> bool:
        """Take in what Events say about a pod; False when they say nothing new, or the pod is gone."""
        meta = pod["metadata"]
        known = self._items[PODS].get((meta["namespace"], meta["name"]))
        if known is None or known["metadata"]["uid"] != meta["uid"]:
            return False
        before, self._events[meta["uid"]] = self.events(meta["uid"]), events
        return _said(before) != _said(events)

    def events(self, pod_uid: str) -> tuple[Manifest, ...]:
        """Events about a pod, as far as anybody asked."""
        return self._events.get(pod_uid, ())

    def services(self, uid: str) -> tuple[Manifest, ...]:
        """Services of a job."""
        return self.children(uid, SERVICES)

    def config_maps(self, uid: str) -> tuple[Manifest, ...]:
        """ConfigMaps of a job."""
        return self.children(uid, CONFIG_MAPS)

    def network_policies(self, uid: str) -> tuple[Manifest, ...]:
        """NetworkPolicies of a job."""
        return self.children(uid, NETWORK_POLICIES)

    def _forget(self, kind: Kind, place: Key) -> None:
        item = self._items[kind].pop(place)
        owner = owner_uid(item)
        if owner and owner in self._children:
            self._children[owner].discard((kind, place))
            if not self._children[owner]:
                del self._children[owner]
