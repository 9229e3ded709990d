"""What the cache keeps of an object: what somebody reads. Pure.

An operator of many jobs holds thousands of objects for hours. Half of what the API server sends of each says
who manages which field, and most of the rest of a pod is the spec that the operator itself has written.
"""

from collections.abc import Mapping
from typing import Any

from grpo_api.contract import labels
from grpo_operator.children.config import content_digest
from grpo_operator.children.pod import RUN_CONFIG_KEY
from grpo_operator.cluster.kinds import CONFIG_MAPS, JOBS, PODS, Kind, KubeObject

DIGEST = "contentDigest"
"""Where the digest of all that a ConfigMap holds is pruned: the largest part of it is left out."""

_LEFT_OUT_OF_METADATA = ("managedFields", "annotations", "selfLink", "generateName")
_POD_SPEC = ("nodeName", "restartPolicy", "imagePullSecrets", "schedulerName", "activeDeadlineSeconds")
_POD_CONTAINER = ("name", "image")
_MOUNTED = ("volumes", "volumeMounts")
"""Kept of a pod that has not started: its node tells of a volume by the name that it has in the spec."""
_POD_STATUS = ("phase", "reason", "message", "podIP", "conditions", "containerStatuses")


def pruned(kind: Kind, item: KubeObject) -> KubeObject:
    """An object without what nobody reads. What is left of it is not copied."""
    found = {key: value for key, value in item.items() if key != "metadata"}
    found["metadata"] = _without(item["metadata"], _LEFT_OUT_OF_METADATA)
    annotations = item["metadata"].get("annotations") or {}
    if kind == JOBS and labels.ACCEPTED_LOSS in annotations:
        found["metadata"]["annotations"] = _only(annotations, (labels.ACCEPTED_LOSS,))
    if kind == PODS:
        spec, mounted = item.get("spec", {}), _MOUNTED if _has_not_started(item) else ()
        of_container = (*_POD_CONTAINER, *mounted)
        containers = [_only(container, of_container) for container in spec.get("containers", ())]
        found["spec"] = {**_only(spec, (*_POD_SPEC, *mounted)), "containers": containers}
        found["status"] = _only(item.get("status", {}), _POD_STATUS)
    elif kind == CONFIG_MAPS:
        found["data"] = _without(item.get("data") or {}, (RUN_CONFIG_KEY,))
        found[DIGEST] = content_digest(item)
    return found


def _has_not_started(pod: KubeObject) -> bool:
    phase: str = pod.get("status", {}).get("phase", "Pending")
    return phase == "Pending"


def _only(data: Mapping[str, Any], keys: tuple[str, ...]) -> KubeObject:
    return {key: data[key] for key in keys if key in data}


def _without(data: Mapping[str, Any], keys: tuple[str, ...]) -> KubeObject:
    return {key: value for key, value in data.items() if key not in keys}
