"""From a refused write to the word and the sentence a person needs."""

from grpo_operator import errors
from grpo_operator.observed import Trouble


def explain_refusal(error: errors.KubernetesError, *, child: str) -> Trouble:
    """Why `child` ("Pod copy-...") could not be made; the server's sentence is kept."""
    text = str(error)
    if isinstance(error, errors.Forbidden):
        if "exceeded quota" in text:
            return Trouble("QuotaExceeded", f"{child} does not fit into the namespace's quota: {text}")
        if "violates PodSecurity" in text:
            return Trouble("PodSecurityRefused", f"{child} is refused by Pod Security: {text}")
        if "being terminated" in text:
            return Trouble("NamespaceTerminating", f"{child} cannot be made: {text}")
        return Trouble("CreateForbidden", f"{child} is refused: {text}")
    return Trouble("CreateRejected", f"{child} is rejected by the API server: {text}")


def name_taken(child: str) -> Trouble:
    """Somebody else's object has the name of one of our children."""
    return Trouble(
        "NameTaken", f"{child} exists but does not belong to this job: delete it or rename the job"
    )
