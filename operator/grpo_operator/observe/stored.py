"""One object as the cache holds it: what the cache asks of every object, and what else somebody reads of it,
as JSON. Pure.

An operator of many jobs holds thousands of objects for hours. Half of what the API server sends of each says
who manages which field, and most of the rest of a pod is the spec that the operator itself has written: that
is left out. As Python objects the same data takes almost twice the memory of its text, in thousands of small
pieces. They would lie between those of large answers, whose memory could then be neither given back nor used
for anything large. Reading all objects of a job takes a fraction of a millisecond.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_api.contract import labels
from grpo_operator.children.config import content_digest
from grpo_operator.children.pod import RUN_CONFIG_KEY
from grpo_operator.cluster.kinds import CONFIG_MAPS, JOBS, PODS, WORKLOADS, Kind, KubeObject, is_pod_group
from grpo_operator.observe.tracking import is_mark

DIGEST = "contentDigest"
"""Where the digest of all that a ConfigMap holds is pruned: the largest part of it is left out."""

_LEFT_OUT_OF_METADATA = ("managedFields", "annotations", "selfLink", "generateName")
_POD_SPEC = ("nodeName", "restartPolicy", "imagePullSecrets", "schedulerName", "activeDeadlineSeconds")
_POD_CONTAINER = ("name", "image")
_MOUNTED = ("volumes", "volumeMounts")
"""Kept of a pod that has not started: its node reports a volume by the name that it has in the spec."""
_POD_STATUS = ("phase", "reason", "message", "podIP", "conditions", "containerStatuses")

Identity = tuple[str, str]
"""(namespace, uid) of a job. An owner reference holds within a namespace only, and the API server does not
check it: anybody may name any uid as the owner of an object in a namespace of his own."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A state of an object."""

    key: tuple[str, str]
    """(namespace, name)."""
    uid: str
    version: int
    """Position of this state in the cluster's history."""
    job: tuple[str, str] | None
    """(name, uid) of the GRPOJob that controls the object."""
    phase: str
    """`status.phase` of a job or a pod; empty where it has none."""
    text: str

    @property
    def owner(self) -> Identity | None:
        """The job that controls the object."""
        return (self.key[0], self.job[1]) if self.job else None

    def read(self) -> KubeObject:
        """The object as it was pruned. Nobody else has this copy."""
        found: KubeObject = json.loads(self.text)
        return found


def store(kind: Kind, item: KubeObject) -> Stored:
    """What to store of an object."""
    owner = owner_of(item)
    return Stored(
        key=key_of(item),
        uid=sys.intern(item["metadata"]["uid"]),
        version=version_of(item),
        job=(sys.intern(owner["name"]), sys.intern(owner["uid"])) if owner else None,
        phase=sys.intern(item.get("status", {}).get("phase", "")),
        text=json.dumps(pruned(kind, item), separators=(",", ":")),
    )


def pruned(kind: Kind, item: KubeObject) -> KubeObject:
    """An object without what nobody reads. What is left of it is not copied."""
    found = {key: value for key, value in item.items() if key != "metadata"}
    found["metadata"] = _without(item["metadata"], _LEFT_OUT_OF_METADATA)
    annotations = item["metadata"].get("annotations") or {}
    read = [key for key in annotations if key == labels.ACCEPTED_LOSS or is_mark(key)]
    if kind == JOBS and read:
        found["metadata"]["annotations"] = _only(annotations, tuple(read))
    if kind == PODS:
        spec, mounted = item.get("spec", {}), _MOUNTED if _has_not_started(item) else ()
        of_container = (*_POD_CONTAINER, *mounted)
        containers = [_only(container, of_container) for container in spec.get("containers", ())]
        found["spec"] = {**_only(spec, (*_POD_SPEC, *mounted)), "containers": containers}
        found["status"] = _only(item.get("status", {}), _POD_STATUS)
    elif kind == CONFIG_MAPS:
        found["data"] = _without(item.get("data") or {}, (RUN_CONFIG_KEY,))
        found[DIGEST] = content_digest(item)
    elif kind == WORKLOADS:
        pod_sets = [_without(each, ("template",)) for each in item["spec"].get("podSets", ())]
        found["spec"] = {**item["spec"], "podSets": pod_sets}
    elif is_pod_group(kind):
        found["metadata"]["annotations"] = _only(annotations, (labels.WOKEN_AT,))
    return found


def _has_not_started(pod: KubeObject) -> bool:
    phase: str = pod.get("status", {}).get("phase", "Pending")
    return phase == "Pending"


def _only(data: Mapping[str, Any], keys: tuple[str, ...]) -> KubeObject:
    return {key: data[key] for key in keys if key in data}


def _without(data: Mapping[str, Any], keys: tuple[str, ...]) -> KubeObject:
    return {key: value for key, value in data.items() if key not in keys}


def key_of(item: KubeObject) -> tuple[str, str]:
    """(namespace, name) of an object."""
    meta = item["metadata"]
    return sys.intern(meta["namespace"]), meta["name"]


def version_of(item: KubeObject) -> int:
    """Position of this state of the object in the cluster's history."""
    return int(item["metadata"]["resourceVersion"])


def owner_of(item: KubeObject) -> KubeObject | None:
    """The reference to the GRPOJob that controls this object. A Workload has it as an owner only: Kueue would
    ask for the controller of a Workload, and not come to an end where it may not read GRPOJobs."""
    is_workload = item.get("kind") == WORKLOADS.name
    for reference in item["metadata"].get("ownerReferences", ()):
        if (
            (reference.get("controller") or is_workload)
            and reference["kind"] == JOBS.name
            and reference["apiVersion"].startswith(f"{JOBS.group}/")
        ):
            found: KubeObject = reference
            return found
    return None
