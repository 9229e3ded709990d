"""Turns what a scheduler, a kubelet or an Event says into a reason and a message that names the fix."""

import re
from collections.abc import Sequence

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_operator.cluster.kinds import KubeObject

EVICTED = "Evicted"
UNSCHEDULABLE = "Unschedulable"
ERR_IMAGE_PULL = "ErrImagePull"
IMAGE_PULL_REASONS = frozenset({ERR_IMAGE_PULL, "ImagePullBackOff"})
"""The kubelet alternates between the two; both mean the same to a person."""
FAILED_MOUNT = "FailedMount"
MISSING_PULL_SECRET = "FailedToRetrieveImagePullSecret"  # noqa: S105 - the reason of an Event

_DEFAULT_SCHEDULER = "default-scheduler"
_AFTER_MOUNTING = frozenset({"Pulling", "Pulled", "Created", "Started"})
_BLOCKING_WARNINGS = frozenset(
    {
        FAILED_MOUNT,
        "FailedAttachVolume",
        "FailedMapVolume",
        "FailedCreatePodSandBox",
        "FailedCreatePodContainer",
        "FailedPrepareDynamicResources",
        "NetworkNotReady",
    }
)
"""Warnings about something that a pod cannot start without. Most others do not keep it from starting, such as
the one about a list of name servers that is too long."""
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*"(: ErrImagePull)?(: )?')
_PREEMPTION_NOTE = re.compile(r"\.\s+(no new claims to deallocate|preemption:|not found).*$", re.S)
"""What a scheduler adds about preempting other pods. It does not help a person."""
_NO_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
_UNBOUND = re.compile(r"unbound immediate PersistentVolumeClaims|available persistent volumes to bind")
_FOR_ANOTHER = re.compile(
    r"optimistic rejection in PostFilter|rejection in Unreserve|cannot find enough sibling pods"
    r"|podGroup \S+ failed recently|timeout after waiting \S+ at plugin Coscheduling"
)
"""What the plugin Coscheduling says of a pod that it turned away because of another one of its group
(pkg/coscheduling of scheduler-plugins)."""
_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z0-9./-]+[A-Za-z0-9])")
_OVER_OWN_LIMIT = re.compile(
    r"exceeded its local ephemeral storage limit"
    r"|^Pod ephemeral local storage usage exceeds the total limit of containers"
    r"|^Usage of EmptyDir volume .* exceeds the limit"
)
"""The kubelet's three messages about a pod that it evicts for the pod's own use of storage, whatever the node
has free (pkg/kubelet/eviction/helpers.go). Under pressure it says that the node was low on a resource."""
_NO_FOLDER = re.compile(r'failed to (?:create subPath directory|prepare subPath) for volumeMount "([^"]+)"')
"""The kubelet's two messages about a subPath (pkg/kubelet/kubelet_pods.go)."""
_IN_BRACKETS = re.compile(r"\(([^)]+)\)")


def reason_message(reason: str, message: str) -> ReasonMessage:
    """What a node or a controller gave as a reason, made into one that a condition can hold."""
    word = re.sub(r"[^A-Za-z0-9]", "", reason)
    return ReasonMessage(word[:253] if word[:1].isalpha() else Reason.POD_TROUBLE, message)


def is_over_own_limit(message: str) -> bool:
    """Whether a pod with this message was evicted because it used more storage than its own limit."""
    return _OVER_OWN_LIMIT.search(message) is not None


def evicted_for_storage(message: str, *, role: str) -> ReasonMessage:
    """Why a pod was evicted that used more storage than its own limit, and which field to change."""
    fix = f"raise ephemeral-storage in {role}.resources.limits, or write less outside the claim"
    return ReasonMessage(EVICTED, f"it used more storage than its own limit: {fix} ({message.strip()})")


def not_scheduled(reason: str, message: str, *, role: str) -> ReasonMessage:
    """Why no node takes a pod: what is missing, and which field asks for it. `role` names its section of the
    spec."""
    text = _PREEMPTION_NOTE.sub("", message).strip() or "no node takes it"
    missing = _NO_CLAIM.search(text)
    short = sorted(set(_INSUFFICIENT.findall(text)))
    if missing:
        fix = f"PersistentVolumeClaim {missing[1]} does not exist: create it, or correct the name in the spec"
    elif short:
        fix = f"no node has enough {' and '.join(short)} free: lower {role}.resources, or add a node"
    elif _FOR_ANOTHER.search(text):
        what = "it gets a node together with the other pods of its group, and one of them finds none"
        return ReasonMessage(Reason.WAITING_FOR_GROUP, f"{what} ({text.rstrip('.')})")
    elif _UNBOUND.search(text):
        fix = "no volume fits one of its PersistentVolumeClaims: see `kubectl describe pvc`"
    else:
        return reason_message(reason or UNSCHEDULABLE, text)
    return reason_message(reason or UNSCHEDULABLE, f"{fix} ({text.rstrip('.')})")


def not_seen(scheduler: str, *, role: str) -> ReasonMessage:
    """The reason that the scheduler of a pod does not look at it, and what to do. `role` names its section of
    the spec."""
    if scheduler == _DEFAULT_SCHEDULER:
        fix = f"the scheduler of the cluster ({scheduler}) is down or far behind"
    else:
        fix = f"start it, or correct {role}.podTemplate.spec.schedulerName in a new job"
    message = f"no scheduler named {scheduler} looks at the pod, which has waited for a node for 30 s: {fix}"
    return ReasonMessage(Reason.NO_SCHEDULER, message)


def not_pulled(
    image: str, message: str, events: Sequence[KubeObject], *, is_default: bool = False
) -> ReasonMessage:
    """Why an image cannot be pulled, and who names it: the job, or the operator as its default. That a pull
    secret is missing shows only in an Event."""
    text = _BACK_OFF.sub("", message).strip()
    sentence = f"the image {image} cannot be pulled" + (f": {text}" if text else "")
    absent = [event for event in events if event.get("reason") == MISSING_PULL_SECRET]
    if absent:
        named = _IN_BRACKETS.search(absent[-1].get("message", ""))
        secrets = f"Secret {named[1]}" if named else "one of the Secrets"
        return ReasonMessage(ERR_IMAGE_PULL, f"{secrets} of imagePullSecrets does not exist, and {sentence}")
    fix = f"is {image_setting(is_default=is_default)} right, and does it need imagePullSecrets?"
    if is_default:
        fix += " The job keeps the image: delete it and apply it again once the default is right"
    return ReasonMessage(ERR_IMAGE_PULL, f"{sentence}: {fix}")


def no_folder(message: str, spec: KubeObject) -> str | None:
    """The message that the folder of a mount cannot be made on its claim, and what to do; None for any other
    message of a kubelet about a container. `spec` is that of the pod. The kubelet writes the cause to its own
    log only."""
    found = _NO_FOLDER.search(message)
    if found is None:
        return None
    volume: KubeObject = next((v for v in spec.get("volumes", ()) if v["name"] == found[1]), {})
    claim = volume.get("persistentVolumeClaim", {}).get("claimName")
    where = f"claim {claim}" if claim else f"volume {found[1]}"
    mounts = (mount for each in spec.get("containers", ()) for mount in each.get("volumeMounts", ()))
    folder = next((mount.get("subPath") for mount in mounts if mount["name"] == found[1]), None)
    return (
        f"the folder {folder or found[1]} cannot be made on {where}: look whether the volume is read-only, "
        f"full or damaged, or has a file of that name; it is tried again ({message.strip()})"
    )


def image_setting(*, is_default: bool) -> str:
    """What names the image of a job: its spec, or the operator for jobs that name none."""
    return "the operator's --runtime-image (runtimeImage of its chart)" if is_default else "spec.image"


def not_started(events: Sequence[KubeObject]) -> ReasonMessage | None:
    """What the newest Warning that matters says about a pod that has a node and whose container says nothing.

    A Warning from before the image was pulled no longer matters: the volumes are mounted by then. The
    kubelet's summary of mounts that timed out says less than the Event about the mount itself.
    """
    mounted_at = max(
        (happened_at(event) for event in events if event.get("reason") in _AFTER_MOUNTING), default=""
    )
    warnings = [
        event
        for event in events
        if event.get("type") == "Warning"
        and event.get("reason") in _BLOCKING_WARNINGS
        and happened_at(event) >= mounted_at
    ]
    if not warnings:
        return None
    newest = max(warnings, key=lambda event: (not _is_summary(event), happened_at(event)))
    reason, message = newest.get("reason", ""), newest.get("message", "").strip()
    if reason == FAILED_MOUNT:
        return ReasonMessage(reason, f"a volume cannot be mounted: {message}")
    return reason_message(reason, message or "its node gives no further details")


def _is_summary(event: KubeObject) -> bool:
    return str(event.get("message", "")).startswith("Unable to attach or mount volumes")


def happened_at(event: KubeObject) -> str:
    """When an Event last happened, as text that sorts by time."""
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp", "")
    )
