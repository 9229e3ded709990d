"""An API server in memory, behind the operator's client.

It keeps objects and refuses what a real one refuses: old versions, wrong uids, names that are taken or
malformed, kinds and fields it does not know, owners that are not there, and what its Role does not allow.
"""

import re
from base64 import b64encode
from collections.abc import Callable
from copy import deepcopy
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from grpo_api.crd import crd
from grpo_api.v1alpha1.job import API_VERSION, KIND
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.cluster import errors
from grpo_operator.cluster.client import FIELD_MANAGER, Client, Kept, Listing
from grpo_operator.cluster.kinds import (
    EVENTS,
    JOBS,
    LEASES,
    PODS,
    SECRETS,
    SERVICES,
    WATCHED,
    Kind,
    KubeObject,
)
from grpo_operator.cluster.server_clock import ServerClock
from grpo_operator.observe.cache import Cache

from .fake_cluster import NOW

SERVED = (*WATCHED, SECRETS, EVENTS, LEASES)
NAMESPACE = "default"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_HOST_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


class FakeApiServer(Client):
    """One namespace. `refused` is what a write meets, by the kind or the name of its object. `before_answer`
    gets the object of each GET before the one who asked does. `is_collecting_garbage` says whether what a
    job owns goes with it."""

    def __init__(self, *, clock: Callable[[], datetime] = lambda: NOW) -> None:
        self._clock = clock
        self.clock = ServerClock(wall=clock, monotonic=lambda: 0.0)
        self.refused: dict[str, errors.KubernetesError] = {}
        self.unchangeable: dict[Kind, errors.KubernetesError] = {}
        """What a change of an object that exists meets, by its kind."""
        self.before_answer: Callable[[Kind, KubeObject], object] = lambda kind, item: None
        self.is_collecting_garbage = True
        self.schema_of_jobs = job_schema()
        self.num_writes = 0
        self._version = 100
        self._objects: dict[tuple[Kind, str], KubeObject] = {}
        self._applied: dict[tuple[str, str], set[str]] = {}
        """(uid, field manager) -> parts of the status that this manager applied the last time."""

    def restore(self, *, version: int) -> None:
        """Its store is restored from a backup of so early a version; what was made since is gone."""
        self._version = version

    # What others do

    def put(self, kind: Kind, item: KubeObject) -> KubeObject:
        """Somebody else writes an object, or a part of it; returns it as it is stored."""
        name = item["metadata"]["name"]
        known = self._objects.get((kind, name), {})
        meta = {"namespace": NAMESPACE, "creationTimestamp": self._now()}
        meta |= known.get("metadata", {}) | item["metadata"]
        return self._store(kind, {**known, **item, "metadata": meta})

    def unlabel(self, kind: Kind, name: str) -> KubeObject:
        """Somebody takes all labels away from an object; returns it as it is stored."""
        return self.put(kind, {"metadata": {"name": name, "labels": {}}})

    def remove(self, kind: Kind, name: str) -> None:
        """An object goes for good, and with it what it owns."""
        del self._objects[kind, name]
        self._collect_garbage()

    # What a test looks at

    def objects(self, kind: Kind) -> tuple[KubeObject, ...]:
        """Every object of a kind, oldest first."""
        return tuple(self._read(kind, item) for (of, _), item in self._objects.items() if of == kind)

    def show(self, cache: Cache, *, but: str = "") -> None:
        """Fill a cache as a resync does; `but` is the name of an object that its list misses."""
        for kind in WATCHED:
            listed = self._listed(kind)
            items = [cache.keep(kind, item) for item in listed if item["metadata"]["name"] != but]
            cache.replace(kind, items, namespace=None, listed_at=self._version)

    # What the operator asks for

    async def list(
        self,
        kind: Kind,
        namespace: str | None,
        *,
        fields: str = "",
        keep: Callable[[KubeObject], Kept],
    ) -> Listing[Kept]:
        self._know(kind)
        items = tuple(keep(item) for item in self._listed(kind))
        return Listing(items=items, resource_version=self._version)

    async def get(self, kind: Kind, namespace: str, name: str) -> KubeObject:
        self._know(kind)
        if kind == SECRETS:
            raise errors.Forbidden(f'secrets "{name}" is forbidden: cannot get resource')
        if (kind, name) not in self._objects:
            raise errors.NotFound(f'{kind.plural} "{name}" not found')
        self.before_answer(kind, deepcopy(self._objects[kind, name]))
        return self._read(kind, self._objects[kind, name])

    async def schema(self, kind: Kind) -> KubeObject | None:
        return deepcopy(self.schema_of_jobs) if kind == JOBS else None

    async def create(
        self, kind: Kind, namespace: str, body: KubeObject, *, is_dry_run: bool = False
    ) -> KubeObject:
        name = self._admit(kind, namespace, body)
        if "resourceVersion" in body["metadata"]:
            raise errors.Invalid("resourceVersion should not be set on objects to be created")
        if (kind, name) in self._objects:
            raise errors.AlreadyExists(f'{kind.plural} "{name}" already exists')
        meta = body["metadata"] | {"namespace": namespace, "creationTimestamp": self._now()}
        made = {**body, "metadata": meta}
        if kind == PODS:
            made = _bound(made, at=self._now())
        if kind == SECRETS:
            made["data"] = {key: b64encode(v.encode()) for key, v in made.pop("stringData", {}).items()}
        return deepcopy(made) if is_dry_run else self._store(kind, made)

    async def apply(
        self,
        kind: Kind,
        namespace: str,
        body: KubeObject,
        *,
        subresource: str = "",
        manager: str = FIELD_MANAGER,
    ) -> KubeObject:
        name, meta = self._admit(kind, namespace, body), body["metadata"]
        found = self._objects.get((kind, name))
        if subresource and (subresource != "status" or kind != JOBS or found is None):
            raise errors.NotFound(f'{kind.plural} "{name}" not found, or it has no {subresource}')
        for field in ("uid", "resourceVersion"):
            if field in meta and meta[field] != (found or {"metadata": {}})["metadata"].get(field):
                raise errors.Conflict(f'Operation cannot be fulfilled on {kind.plural} "{name}": {field}')
        if found is None:
            return await self.create(kind, namespace, body)
        if kind in self.unchangeable:
            raise self.unchangeable[kind]
        if subresource:
            status = self._applied_status(found, body.get("status", {}), manager=manager)
            return self._store(kind, {**found, "status": status})
        if found.get("immutable") and any(found.get(k) != body.get(k) for k in ("data", "immutable")):
            raise errors.Invalid(f"{kind.name} {name} is invalid: field is immutable when `immutable` is set")
        if kind == PODS:  # of which a part is applied
            body = {**body, "spec": found["spec"] | body.get("spec", {})}
        given = {key: value for key, value in body.items() if key != "status"}
        return self._store(kind, {**found, **given, "metadata": found["metadata"] | meta})

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str = "",
        grace_seconds: int | None = None,
    ) -> KubeObject | None:
        self._know(kind)
        found = self._objects.get((kind, name))
        if found is None:
            return None
        meta = found["metadata"]
        if resource_version and (meta["uid"], meta["resourceVersion"]) != (uid, resource_version):
            raise errors.Conflict(f'Operation cannot be fulfilled on {kind.plural} "{name}": Precondition')
        if meta["uid"] != uid:
            return None
        self._meet_refusal(kind, name)
        if kind == PODS and found["spec"].get("nodeName"):  # its kubelet has to end it first
            meta = found["metadata"] | {"deletionTimestamp": self._now()}
            return self._store(kind, {**found, "metadata": meta})
        self.num_writes += 1
        self.remove(kind, name)
        return None

    def _listed(self, kind: Kind) -> tuple[KubeObject, ...]:
        if kind == SECRETS:
            raise errors.Forbidden("secrets is forbidden: cannot list resource")
        wanted = dict(part.split("=") for part in kind.selector.split(",") if part).items()
        return tuple(i for i in self.objects(kind) if wanted <= i["metadata"].get("labels", {}).items())

    def _read(self, kind: Kind, item: KubeObject) -> KubeObject:
        """An object as it is served: a job without the parts of its status that the CRD lacks by now."""
        read = deepcopy(item)
        if kind == JOBS and "status" in read:
            read["status"] = _pruned(read["status"], self.schema_of_jobs["properties"]["status"])
        return read

    def _now(self) -> str:
        return f"{self._clock():%Y-%m-%dT%H:%M:%SZ}"

    def _know(self, kind: Kind) -> None:
        if kind not in SERVED:
            raise errors.NotFound("the server could not find the requested resource")

    def _meet_refusal(self, kind: Kind, name: str) -> None:
        for refused in (kind.name, name):
            if refused in self.refused:
                raise self.refused[refused]

    def _admit(self, kind: Kind, namespace: str, body: KubeObject) -> str:
        """The name of an object that may be written. Raises what the API server says to others."""
        self._know(kind)
        meta = body.get("metadata", {})
        name = str(meta.get("name", ""))
        self._meet_refusal(kind, name)
        if (body.get("apiVersion"), body.get("kind")) != (kind.api_version, kind.name):
            raise errors.Invalid(f"{body.get('kind')} in the body is not the {kind.name} in the address")
        if meta.get("namespace", namespace) != namespace:
            raise errors.Invalid("the namespace of the object does not match that of the request")
        if not (_HOST_NAME if kind == SERVICES else _NAME).fullmatch(name):
            raise errors.Invalid(f'{kind.name} "{name}" is invalid: metadata.name')
        for key, value in meta.get("labels", {}).items():
            if not _LABEL_VALUE.fullmatch(value):
                raise errors.Invalid(f'{kind.name} "{name}" is invalid: metadata.labels: {key}: "{value}"')
        _check_owners(meta.get("ownerReferences", []))
        if kind == EVENTS and body["involvedObject"].get("namespace") != namespace:
            raise errors.Invalid("involvedObject.namespace: does not match event.namespace")
        if kind == PODS:
            _check_mounts(body["spec"])
        return name

    def _applied_status(self, job: KubeObject, status: KubeObject, *, manager: str) -> KubeObject:
        """Server-side apply: what this manager gives replaces what it gave before; the rest stays."""
        if undeclared := _undeclared(status, self.schema_of_jobs["properties"]["status"], ".status"):
            raise errors.ServerFailed(
                f"failed to create typed patch object: {undeclared}: field not declared in schema"
            )
        try:
            GRPOJobStatus.from_object(status)
        except ValidationError as error:
            raise errors.Invalid(f"{KIND} is invalid: status: {error}") from error
        uid = job["metadata"]["uid"]
        given = _parts(status)
        others = [parts for (of, by), parts in self._applied.items() if of == uid and by != manager]
        dropped = self._applied.get((uid, manager), set()) - set(given) - set().union(*others)
        self._applied[uid, manager] = set(given)
        kept = {k: v for k, v in _parts(self._read(JOBS, job).get("status", {})).items() if k not in dropped}
        merged = kept | given
        conditions = [v for k, v in merged.items() if k.startswith("conditions/")]
        rest = {k: v for k, v in merged.items() if not k.startswith("conditions/")}
        return rest | ({"conditions": conditions} if conditions else {})

    def _store(self, kind: Kind, item: KubeObject) -> KubeObject:
        self.num_writes += 1
        place = (kind, item["metadata"]["name"])
        meta = {"uid": f"uid-{self._version + 1}"} | item["metadata"]
        known = self._objects.get(place)
        if known and {**item, "metadata": meta | _version_of(known)} == known:
            return deepcopy(known)  # a write that changes nothing makes no new version
        self._version += 1
        meta["resourceVersion"] = str(self._version)
        stored = deepcopy({**item, "metadata": meta})
        self._objects[place] = stored
        self._collect_garbage()
        return deepcopy(stored)

    def _collect_garbage(self) -> None:
        """What belongs to a job that is not there goes, as soon as it is made."""
        if not self.is_collecting_garbage:
            return
        jobs = {item["metadata"]["uid"] for (kind, _), item in self._objects.items() if kind == JOBS}
        for place, item in list(self._objects.items()):
            owners = item["metadata"].get("ownerReferences", [])
            if owners and not any(owner["uid"] in jobs for owner in owners):
                del self._objects[place]


def job_schema() -> KubeObject:
    """The schema of GRPOJob in our own CRD."""
    (version,) = crd()["spec"]["versions"]
    return deepcopy(version["schema"]["openAPIV3Schema"])


def _undeclared(value: Any, schema: KubeObject, path: str) -> str:
    """The first field of a value that its schema does not have."""
    if isinstance(value, dict) and "properties" in schema:
        for name, part in value.items():
            if name not in schema["properties"]:
                return f"{path}.{name}"
            if found := _undeclared(part, schema["properties"][name], f"{path}.{name}"):
                return found
    if isinstance(value, list):
        return next(filter(None, (_undeclared(item, schema["items"], f"{path}[]") for item in value)), "")
    if value not in schema.get("enum", [value]):
        raise errors.Invalid(f'{path}: Unsupported value: "{value}"')
    return ""


def _pruned(value: Any, schema: KubeObject) -> Any:
    """A value without the fields that its schema does not have."""
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        return {name: _pruned(part, known[name]) for name, part in value.items() if name in known}
    if isinstance(value, list):
        return [_pruned(item, schema.get("items", {})) for item in value]
    return value


def _bound(pod: KubeObject, *, at: str) -> KubeObject:
    """A scheduler gives every pod a node at once."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
    status = {"phase": "Pending", "conditions": [scheduled]}
    return {**pod, "spec": pod["spec"] | {"nodeName": "node-a"}, "status": status}


def _version_of(item: KubeObject) -> dict[str, str]:
    return {"resourceVersion": item["metadata"]["resourceVersion"]}


def _check_owners(owners: list[dict[str, Any]]) -> None:
    for owner in owners:
        if not all(owner.get(field) for field in ("apiVersion", "kind", "name", "uid")):
            raise errors.Invalid("metadata.ownerReferences: a part is missing")
        if owner["kind"] == KIND and owner["apiVersion"] != API_VERSION:
            raise errors.Invalid(f"metadata.ownerReferences: {owner['apiVersion']} has no {KIND}")
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        raise errors.Invalid("metadata.ownerReferences: only one may be the controller")


def _check_mounts(spec: KubeObject) -> None:
    names = [volume["name"] for volume in spec.get("volumes", ())]
    mounts = [
        mount for container in spec.get("containers", ()) for mount in container.get("volumeMounts", ())
    ]
    paths = [mount["mountPath"] for mount in mounts]
    if len(set(names)) < len(names) or len(set(paths)) < len(paths):
        raise errors.Invalid("spec.volumes or volumeMounts: Duplicate value")
    if not {mount["name"] for mount in mounts} <= set(names):
        raise errors.Invalid("spec.containers[0].volumeMounts[0].name: Not found")


def _parts(status: KubeObject) -> dict[str, Any]:
    """A status as its fields, with each condition a part of its own."""
    conditions = {f"conditions/{each['type']}": each for each in status.get("conditions", ())}
    return {key: value for key, value in status.items() if key != "conditions"} | conditions
