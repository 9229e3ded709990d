"""Reads a pod's status: the many places in which Kubernetes says why a pod ended or does not start."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from grpo_api.contract import endpoints, labels
from grpo_api.contract.environment import Role
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_operator.children.names import rollout_node, rollout_position, trainer_position
from grpo_operator.children.pod import STOPPED_SECONDS
from grpo_operator.cluster.kinds import KubeObject
from grpo_operator.observe.observed import FINAL_PHASES, ContainerTermination, PodView
from grpo_operator.observe.pod_reasons import (
    EVICTED,
    IMAGE_PULL_REASONS,
    evicted_for_storage,
    is_over_own_limit,
    no_folder,
    not_pulled,
    not_scheduled,
    not_started,
    reason_message,
)

_NORMAL_WAITING = {"", "ContainerCreating", "PodInitializing"}
_DISRUPTIVE_REASONS = {
    EVICTED,
    "Preempting",
    "NodeLost",
    "Shutdown",
    "NodeShutdown",
    "Terminated",
    "NodeAffinity",
}
"""status.reason of a pod that the kubelet or the scheduler ended, whatever its containers did."""
_TAKEN_AWAY = ("DisruptionTarget", "TerminationTarget")
"""Conditions of a pod that is about to be taken away: the one of Kubernetes, and the one that Kueue sets when
it preempts or stops a pod."""
_LONGEST_IMAGE_ID = 512
_LOST_CONTAINER = "ContainerStatusUnknown"
"""Reason of a container whose end its node does not know; its exit code is made up by the node."""


def pod_view(
    item: KubeObject, events: Sequence[KubeObject] = (), *, has_default_image: bool = False
) -> PodView | None:
    """The pod as the planner sees it; None when its name is not one of ours.

    `events` are those about it, which matter only while it does not start. `has_default_image` is whether its
    job names no image.
    """
    meta, status, spec = item["metadata"], item.get("status", {}), item["spec"]
    # By name alone: labels can be taken away from a running pod.
    position = trainer_position(meta["name"]) or rollout_position(meta["name"])
    if position is None:
        return None
    container = _container(status)
    name, ready = container.get("name", ""), _condition(status, "Ready")
    termination, last_termination = (
        _termination(name, container.get(state, {}), has_default_image=has_default_image)
        for state in ("state", "lastState")
    )
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        position=position,
        node_index=rollout_node(meta["name"]),
        phase=_phase(item, container),
        is_settling=status.get("phase") not in FINAL_PHASES and _have_all_ended(item),
        is_ready=ready.get("status") == "True",
        unready_since=time_of(ready.get("lastTransitionTime")) if ready.get("status") == "False" else None,
        is_deleting="deletionTimestamp" in meta,
        is_stopping=spec.get("activeDeadlineSeconds") == STOPPED_SECONDS,
        must_end_by=time_of(meta.get("deletionTimestamp")),
        node=spec.get("nodeName", ""),
        ip=status.get("podIP", ""),
        restarts=container.get("restartCount", 0),
        image=next((c.get("image", "") for c in spec.get("containers", ()) if c["name"] == name), ""),
        image_id=container.get("imageID", "")[:_LONGEST_IMAGE_ID],
        termination=termination,
        last_termination=last_termination,
        disruption=_disruption(meta, status, container),
        has_exceeded_own_limit=_has_exceeded_own_limit(status),
        start_problem=_start_problem(item, container, events, has_default_image=has_default_image),
        created_at=time_of(meta.get("creationTimestamp")),
        unseen_by=_unseen_by(item),
        scheduled_at=_scheduled_at(item),
        given_back=_count(meta.get("labels", {}).get(labels.GIVEN_BACK, "")),
    )


def _scheduled_at(item: KubeObject) -> datetime | None:
    """When a scheduler gave it a node. A pod whose node stands in it from the start gets no time from one."""
    scheduled = _condition(item.get("status", {}), "PodScheduled")
    if scheduled.get("status") == "True" and scheduled.get("lastTransitionTime"):
        return time_of(scheduled["lastTransitionTime"])
    return time_of(item["metadata"].get("creationTimestamp")) if item["spec"].get("nodeName") else None


def _unseen_by(item: KubeObject) -> str:
    """A scheduler that has looked at a pod has given it a node or says why not."""
    status, spec = item.get("status", {}), item["spec"]
    is_seen = spec.get("nodeName") or _condition(status, "PodScheduled")
    if is_seen or status.get("phase", "Pending") != "Pending":
        return ""
    return str(spec.get("schedulerName", ""))


def _count(label: str) -> int:
    """Anybody may change a label."""
    return int(label) if label.isascii() and label.isdigit() else 0


def _phase(item: KubeObject, container: dict[str, Any]) -> str:
    """The pod's phase, or the one it is about to have: a kubelet reports the end of a pod's containers before
    that of the pod. A pod that is deleted in between loses its logs."""
    ended = container.get("state", {}).get("terminated")
    if ended and _have_all_ended(item):
        return "Succeeded" if ended.get("exitCode") == 0 else "Failed"
    return str(item.get("status", {}).get("phase", "Pending"))


def _have_all_ended(item: KubeObject) -> bool:
    """Whether nothing of the pod runs or will run again: neither our container nor one that was added to
    the pod, which would keep its GPUs."""
    containers = item.get("status", {}).get("containerStatuses", ())
    if not containers or item["spec"].get("restartPolicy") != "Never":
        return False
    return all("terminated" in each.get("state", {}) for each in containers)


def _termination(
    container: str, state: dict[str, Any], *, has_default_image: bool
) -> ContainerTermination | None:
    ended = state.get("terminated")
    if not ended:
        return None
    return ContainerTermination(
        container=container,
        exit_code=ended.get("exitCode", 0),
        reason=ended.get("reason", ""),
        message=ended.get("message", ""),
        finished_at=time_of(ended.get("finishedAt")),
        has_default_image=has_default_image,
    )


def time_of(text: str | None) -> datetime | None:
    """A time as Kubernetes writes it; None where there is none."""
    return datetime.fromisoformat(text) if text else None


def _disruption(meta: KubeObject, status: dict[str, Any], container: dict[str, Any]) -> ReasonMessage | None:
    target = _taken_away(status)
    if target:
        return reason_message(
            target.get("reason") or Reason.DISRUPTED, target.get("message") or "the pod was disrupted"
        )
    reason = status.get("reason", "")
    if _has_exceeded_own_limit(status):
        return evicted_for_storage(status["message"], role=_role(meta["name"]))
    if reason in _DISRUPTIVE_REASONS:
        return reason_message(reason, status.get("message") or f"the pod was ended by its node: {reason}")
    ended = container.get("state", {}).get("terminated") or {}
    if ended.get("reason") == _LOST_CONTAINER:
        return reason_message(_LOST_CONTAINER, ended.get("message") or "its node lost the container")
    if "deletionTimestamp" in meta:
        return ReasonMessage(Reason.POD_DELETED, "the pod was deleted from outside")
    return None


def _has_exceeded_own_limit(status: dict[str, Any]) -> bool:
    """Whether the node evicted the pod for storage that it used beyond its own limit, and nothing else took
    it away at the same time, which a condition would say."""
    is_own = status.get("reason") == EVICTED and is_over_own_limit(status.get("message", ""))
    return is_own and not _taken_away(status)


def _taken_away(status: dict[str, Any]) -> dict[str, Any]:
    """The condition that says that the pod is taken away; empty when none does."""
    found = (_condition(status, kind) for kind in _TAKEN_AWAY)
    return next((condition for condition in found if condition.get("status") == "True"), {})


def _role(name: str) -> Role:
    return Role.TRAINER if trainer_position(name) else Role.ROLLOUT


def is_silent(item: KubeObject) -> bool:
    """Whether only Events can show why this pod does not start. It has a node, and the status of its
    container says nothing, or says that the image cannot be pulled, which a missing pull secret may
    cause."""
    status, spec = item.get("status", {}), item["spec"]
    if status.get("phase", "Pending") != "Pending" or not spec.get("nodeName"):
        return False
    reason = _waiting(_container(status)).get("reason", "")
    return reason in _NORMAL_WAITING or (reason in IMAGE_PULL_REASONS and "imagePullSecrets" in spec)


def _start_problem(
    item: KubeObject,
    container: dict[str, Any],
    events: Sequence[KubeObject],
    *,
    has_default_image: bool,
) -> ReasonMessage | None:
    status = item.get("status", {})
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        role = _role(item["metadata"]["name"])
        return not_scheduled(scheduled.get("reason", ""), scheduled.get("message", ""), role=role)
    waiting = _waiting(container)
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in IMAGE_PULL_REASONS:
        return not_pulled(container.get("image", ""), message, events, is_default=has_default_image)
    if reason not in _NORMAL_WAITING:
        return reason_message(reason, no_folder(message, item["spec"]) or message or reason)
    if status.get("phase") == "Failed" and status.get("reason"):
        return reason_message(status["reason"], status.get("message") or "its node gives no further details")
    return not_started(events) if is_silent(item) else None


def _container(status: dict[str, Any]) -> dict[str, Any]:
    """The status of our container; empty before the kubelet reports it."""
    ours = (endpoints.TRAINER_CONTAINER, endpoints.ROLLOUT_CONTAINER)
    found: dict[str, Any] = next((c for c in status.get("containerStatuses", ()) if c["name"] in ours), {})
    return found


def _waiting(container: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = container.get("state", {}).get("waiting") or {}
    return found


def _condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((c for c in status.get("conditions", ()) if c["type"] == kind), {})
