"""Which job is reconciled first when many wait. Pure."""

from enum import IntEnum

from grpo_api.v1alpha1.status import ConditionStatus, ConditionType, Phase
from grpo_operator.cluster.kinds import KubeObject


class Urgency(IntEnum):
    """How soon a job is reconciled when others wait too; the lowest first."""

    NEWS = 0
    """Something happened to a job that has trained."""
    START = 1
    """A job that has not made a step yet."""
    ROUTINE = 2
    """Nothing is known to have happened."""


def urgency_of(job: KubeObject | None) -> Urgency:
    """What happens to a job that has made a step is news, also while it starts again. One that is yet to make
    its first step, has ended or is gone can wait."""
    status = (job or {}).get("status", {})
    is_over = status.get("phase") in (Phase.SUCCEEDED, Phase.FAILED)
    return Urgency.NEWS if status.get("step", 0) > 0 and not is_over else Urgency.START


def is_starting(job: KubeObject | None) -> bool:
    """Whether the pods of a job are being made for the first time, and change many times within a second:
    until its trainer runs and all its engines have been admitted once."""
    status = (job or {}).get("status", {})
    if status.get("phase") == Phase.RUNNING:
        return _is_without_engines_so_far(status)
    return status.get("phase") in (Phase.PENDING, Phase.STARTING) and urgency_of(job) is Urgency.START


def _is_without_engines_so_far(status: KubeObject) -> bool:
    """Whether RolloutReady has been False since the job began."""
    return any(
        (known["type"], known["status"]) == (ConditionType.ROLLOUT_READY, ConditionStatus.FALSE)
        and known["lastTransitionTime"] == status.get("startTime")
        for known in status.get("conditions", ())
    )
