"""Reads a pod's status: the places where Kubernetes hides why a pod ended or does not start."""

import re
from datetime import datetime
from typing import Any

from grpo_api.contract import endpoints
from grpo_operator.kinds import Manifest
from grpo_operator.names import rollout_position, trainer_position
from grpo_operator.observed import Ending, PodView, Trouble

_NORMAL_WAITING = {"", "ContainerCreating", "PodInitializing"}
_DISRUPTIVE_REASONS = {
    "Evicted",
    "Preempting",
    "NodeLost",
    "Shutdown",
    "NodeShutdown",
    "Terminated",
    "NodeAffinity",
}
"""status.reason of a pod that the kubelet or the scheduler ended, whatever its containers did."""
_LOST_CONTAINER = "ContainerStatusUnknown"
"""Reason of a container whose end its node cannot tell, with an exit code the node made up."""


def pod_view(item: Manifest) -> PodView | None:
    """The pod as the planner sees it; None when its name is not one of ours."""
    meta, status, spec = item["metadata"], item.get("status", {}), item["spec"]
    # By name alone: labels can be taken away from a pod that lives on.
    position = trainer_position(meta["name"]) or rollout_position(meta["name"])
    if position is None:
        return None
    containers = {entry["name"]: entry for entry in status.get("containerStatuses", ())}
    name = next(
        (n for n in (endpoints.TRAINER_CONTAINER, endpoints.ROLLOUT_CONTAINER) if n in containers), ""
    )
    container = containers.get(name, {})
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        position=position,
        phase=status.get("phase", "Pending"),
        is_ready=_condition(status, "Ready").get("status") == "True",
        is_deleting="deletionTimestamp" in meta,
        node=spec.get("nodeName", ""),
        ip=status.get("podIP", ""),
        restarts=container.get("restartCount", 0),
        ending=_ending(name, container.get("state", {})),
        last_ending=_ending(name, container.get("lastState", {})),
        disruption=_disruption(meta, status, container),
        trouble=_cannot_start(status, container),
        created_at=_time(meta.get("creationTimestamp")),
    )


def _ending(container: str, state: dict[str, Any]) -> Ending | None:
    ended = state.get("terminated")
    if not ended:
        return None
    return Ending(
        container=container,
        exit_code=ended.get("exitCode", 0),
        reason=ended.get("reason", ""),
        message=ended.get("message", ""),
        finished_at=_time(ended.get("finishedAt")),
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _disruption(meta: Manifest, status: dict[str, Any], container: dict[str, Any]) -> Trouble | None:
    target = _condition(status, "DisruptionTarget")
    if target.get("status") == "True":
        return _trouble(target.get("reason") or "Disrupted", target.get("message") or "the pod was disrupted")
    reason = status.get("reason", "")
    if reason in _DISRUPTIVE_REASONS:
        return _trouble(reason, status.get("message") or f"the pod was ended by its node: {reason}")
    ended = container.get("state", {}).get("terminated") or {}
    if ended.get("reason") == _LOST_CONTAINER:
        return _trouble(_LOST_CONTAINER, ended.get("message") or "its node lost the container")
    if "deletionTimestamp" in meta:
        return Trouble("PodDeleted", "the pod was deleted from outside")
    return None


def _cannot_start(status: dict[str, Any], container: dict[str, Any]) -> Trouble | None:
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return _trouble(
            scheduled.get("reason") or "Unschedulable", scheduled.get("message") or "no node takes it"
        )
    waiting = container.get("state", {}).get("waiting", {})
    reason = waiting.get("reason", "")
    if reason not in _NORMAL_WAITING:
        return _trouble(reason, waiting.get("message") or reason)
    if status.get("phase") == "Failed" and status.get("reason"):
        return _trouble(status["reason"], status.get("message") or "its node did not say more")
    return None


def _trouble(reason: str, message: str) -> Trouble:
    """With a reason that a condition can carry, whatever a node or a controller wrote."""
    word = re.sub(r"[^A-Za-z0-9]", "", reason)
    return Trouble(word[:253] if word[:1].isalpha() else "PodTrouble", message)


def _condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((c for c in status.get("conditions", ()) if c["type"] == kind), {})
