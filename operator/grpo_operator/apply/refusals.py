"""Turns a write that the API server refused into the reason and the message that a person needs. Pure."""

from collections.abc import Sequence

from grpo_api.contract import labels
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import WORKLOADS, Kind
from grpo_operator.observe.observed import Refusal

_LEAVE_QUEUE = (
    "take the job out of its queue: set spec.suspend to true, remove spec.queueName (or the label "
    f"{labels.QUEUE_NAME}), and set spec.suspend to false"
)


def explain_refusal(error: errors.KubernetesError, *, kind: Kind, name: str) -> Refusal:
    """Why a child could not be made; the API server's own message is kept."""
    reason, what = _why_unavailable(error, kind) or _reason_of(error)
    return Refusal(name, ReasonMessage(reason, f"{kind.name} {name} {what}: {error}"))


def _why_unavailable(error: errors.KubernetesError, kind: Kind) -> tuple[Reason, str] | None:
    """Why the cluster or the operator's rights lack a kind that not every cluster has; None for any other
    error."""
    if kind.comes_with and (isinstance(error, errors.NotFound) or _is_being_removed(error)):
        instead = _LEAVE_QUEUE if kind == WORKLOADS else "create the job anew without scheduling.gang"
        return _unavailable(kind), (
            f"cannot be made, because the cluster does not know {kind.plural} of {kind.api_version}, which "
            f"come with {kind.comes_with}: install that, or {instead}"
        )
    if kind.comes_with and isinstance(error, errors.Forbidden) and " cannot " in str(error):
        value = "kueue.enabled" if kind == WORKLOADS else "gangs"
        return _unavailable(kind), (
            f"cannot be made, because the operator has no right on {kind.plural} of {kind.group}: its "
            f"administrator gives it with `{value}` of the chart"
        )
    if kind == WORKLOADS and _is_by_kueue(error):
        return _unavailable(kind), (
            "cannot be made, because Kueue does not answer: its administrator starts it again (mostly "
            "Deployment kueue-controller-manager in namespace kueue-system), and the operator tries again at "
            f"least every half a minute; where it does not come back, {_LEAVE_QUEUE}"
        )
    return None


def _is_being_removed(error: errors.KubernetesError) -> bool:
    """Whether the CRD of the kind is being deleted, and all objects of the kind with it."""
    return isinstance(error, errors.Forbidden) and "custom resource definition is terminating" in str(error)


def _is_by_kueue(error: errors.KubernetesError) -> bool:
    """Whether a webhook of Kueue, which is asked about each Workload, does not answer."""
    text = str(error)
    return isinstance(error, errors.ServerFailed) and "webhook" in text and "kueue" in text


def _unavailable(kind: Kind) -> Reason:
    return Reason.QUEUE_UNAVAILABLE if kind == WORKLOADS else Reason.GANG_UNAVAILABLE


def _reason_of(error: errors.KubernetesError) -> tuple[Reason, str]:
    text = str(error)
    if isinstance(error, errors.ServerFailed):
        return Reason.CREATE_FAILED, "cannot be made"
    if not isinstance(error, errors.Forbidden):
        return Reason.CREATE_REJECTED, "is rejected by the API server"
    if "exceeded quota" in text or "failed quota" in text:
        return Reason.QUOTA_EXCEEDED, "does not fit into the namespace's quota"
    if "violates PodSecurity" in text:
        return Reason.POD_SECURITY_REFUSED, "is refused by Pod Security"
    if "being terminated" in text:
        return Reason.NAMESPACE_TERMINATING, "cannot be made"
    return Reason.CREATE_FORBIDDEN, "is refused"


def tokens_lost(name: str, *, job_uid: str) -> Refusal:
    """The Secret of a job whose pods are running is gone."""
    message = (
        f"Secret {name} is gone, and with it the tokens that the running pods of this job know: delete all "
        f"its pods (kubectl delete pods -l {labels.JOB_UID}={job_uid}), and they start again with new ones"
    )
    return Refusal(name, ReasonMessage(Reason.TOKENS_LOST, message))


def being_deleted(kind: str, name: str, finalizers: Sequence[str]) -> Refusal:
    """A child of the job is being deleted, and something keeps it, so that it cannot be made anew yet."""
    kept_by = f", which its finalizers keep ({', '.join(finalizers)})" if finalizers else ""
    message = (
        f"{kind} {name} is being deleted{kept_by}: it is made again once it is gone, and no pod before it"
    )
    return Refusal(name, ReasonMessage(Reason.NAME_TAKEN, message))


def not_restricted(name: str, problems: Sequence[str]) -> Refusal:
    """A pod that would be more than pods of a job may be."""
    message = f"Pod {name} would have rights that no pod of a job has, and is not made: {'; '.join(problems)}"
    return Refusal(name, ReasonMessage(Reason.NOT_PERMITTED, message))


def config_changed(name: str) -> Refusal:
    """Under the name of the job's ConfigMap there is one with another content."""
    message = (
        f"ConfigMap {name} has another content than this job's: delete it, and the operator makes it again"
    )
    return Refusal(name, ReasonMessage(Reason.REVISION_CHANGED, message))


def name_taken(kind: str, name: str) -> Refusal:
    """An object that is not the job's has the name of one of its children."""
    message = f"{kind} {name} exists but does not belong to this job: delete it or rename the job"
    return Refusal(name, ReasonMessage(Reason.NAME_TAKEN, message))
