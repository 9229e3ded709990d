"""From the words of a scheduler, a kubelet or an Event to one word and one sentence with the fix in it."""

import re
from collections.abc import Sequence

from grpo_operator.kinds import Manifest
from grpo_operator.observed import Trouble

IMAGE_PULL_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff"})
"""The kubelet alternates between the two; both mean the same to a person."""
MISSING_PULL_SECRET = "FailedToRetrieveImagePullSecret"  # noqa: S105 - the reason of an Event

_MOUNTED = frozenset({"Pulling", "Pulled", "Created", "Started"})
_HINDERING = frozenset(
    {
        "FailedMount",
        "FailedAttachVolume",
        "FailedMapVolume",
        "FailedCreatePodSandBox",
        "FailedCreatePodContainer",
        "FailedPrepareDynamicResources",
        "NetworkNotReady",
    }
)
"""Warnings about what a pod cannot start without. Of the others most are about what it starts all the same,
such as a list of name servers that is too long."""
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*"(: ErrImagePull)?(: )?')
_AFTERTHOUGHT = re.compile(r"\.\s+(no new claims to deallocate|preemption:|not found).*$", re.S)
"""What a scheduler adds about pods it might have taken the place of: nothing that a person can use."""
_NO_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
_UNBOUND = re.compile(r"unbound immediate PersistentVolumeClaims|available persistent volumes to bind")
_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z0-9./-]+[A-Za-z0-9])")
_IN_BRACKETS = re.compile(r"\(([^)]+)\)")


def trouble(reason: str, message: str) -> Trouble:
    """With a reason that a condition can carry, whatever a node or a controller wrote."""
    word = re.sub(r"[^A-Za-z0-9]", "", reason)
    return Trouble(word[:253] if word[:1].isalpha() else "PodTrouble", message)


def not_scheduled(reason: str, message: str, *, role: str) -> Trouble:
    """A pod that no node takes: what is missing, and which field asks for it. `role` names its section of
    the spec."""
    told = _AFTERTHOUGHT.sub("", message).strip() or "no node takes it"
    missing = _NO_CLAIM.search(told)
    short = sorted(set(_INSUFFICIENT.findall(told)))
    if missing:
        fix = f"PersistentVolumeClaim {missing[1]} does not exist: create it, or correct the name in the spec"
    elif short:
        fix = f"no node has enough {' and '.join(short)} free: lower {role}.resources, or add a node"
    elif _UNBOUND.search(told):
        fix = "no volume fits one of its PersistentVolumeClaims: see `kubectl describe pvc`"
    else:
        return trouble(reason or "Unschedulable", told)
    return trouble(reason or "Unschedulable", f"{fix} ({told.rstrip('.')})")


def not_pulled(image: str, message: str, events: Sequence[Manifest]) -> Trouble:
    """An image that cannot be had. A pull secret that is not there shows in an Event only."""
    told = _BACK_OFF.sub("", message).strip()
    sentence = f"the image {image} cannot be pulled" + (f": {told}" if told else "")
    absent = [event for event in events if event.get("reason") == MISSING_PULL_SECRET]
    if absent:
        named = _IN_BRACKETS.search(absent[-1].get("message", ""))
        secrets = f"Secret {named[1]}" if named else "one of the Secrets"
        return Trouble("ErrImagePull", f"{secrets} of imagePullSecrets does not exist, and {sentence}")
    return Trouble("ErrImagePull", f"{sentence}: is spec.image right, and does it need imagePullSecrets?")


def not_started(events: Sequence[Manifest]) -> Trouble | None:
    """What the newest Warning that matters says about a pod that has a node and no word from its container.

    A Warning of before the image was pulled is history: by then all volumes were mounted. The kubelet's
    summary of mounts that timed out says less than the Event of the mount itself.
    """
    mounted = max((happened_at(event) for event in events if event.get("reason") in _MOUNTED), default="")
    warnings = [
        event
        for event in events
        if event.get("type") == "Warning"
        and event.get("reason") in _HINDERING
        and happened_at(event) >= mounted
    ]
    if not warnings:
        return None
    newest = max(warnings, key=lambda event: (not _is_summary(event), happened_at(event)))
    reason, message = newest.get("reason", ""), newest.get("message", "").strip()
    if reason == "FailedMount":
        return Trouble(reason, f"a volume cannot be mounted: {message}")
    return trouble(reason, message or "its node says no more than that")


def _is_summary(event: Manifest) -> bool:
    return str(event.get("message", "")).startswith("Unable to attach or mount volumes")


def happened_at(event: Manifest) -> str:
    """When an Event happened last; the newer of two sorts behind the other."""
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp", "")
    )
