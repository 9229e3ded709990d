"""From a refused write to the word and the sentence a person needs."""

from grpo_api.contract import labels
from grpo_operator import errors
from grpo_operator.observed import Trouble


def explain_refusal(error: errors.KubernetesError, *, kind: str, name: str) -> Trouble:
    """Why a child could not be made; the server's sentence is kept."""
    reason, why = _why(error)
    return Trouble(reason, f"{kind} {name} {why}: {error}", child=name)


def _why(error: errors.KubernetesError) -> tuple[str, str]:
    text = str(error)
    if isinstance(error, errors.ServerFailed):
        return "CreateFailed", "cannot be made"
    if not isinstance(error, errors.Forbidden):
        return "CreateRejected", "is rejected by the API server"
    if "exceeded quota" in text or "failed quota" in text:
        return "QuotaExceeded", "does not fit into the namespace's quota"
    if "violates PodSecurity" in text:
        return "PodSecurityRefused", "is refused by Pod Security"
    if "being terminated" in text:
        return "NamespaceTerminating", "cannot be made"
    return "CreateForbidden", "is refused"


def tokens_lost(name: str, *, job_uid: str) -> Trouble:
    """The Secret of a job whose pods are running is gone."""
    sentence = (
        f"Secret {name} is gone, and with it the tokens that the running pods of this job know: delete all "
        f"its pods (kubectl delete pods -l {labels.JOB_UID}={job_uid}), and they start again with new ones"
    )
    return Trouble("TokensLost", sentence, child=name)


def name_taken(kind: str, name: str) -> Trouble:
    """Somebody else's object has the name of one of our children."""
    sentence = f"{kind} {name} exists but does not belong to this job: delete it or rename the job"
    return Trouble("NameTaken", sentence, child=name)
