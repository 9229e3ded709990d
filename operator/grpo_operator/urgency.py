"""Which job is reconciled first when many wait. Pure."""

from enum import IntEnum

from grpo_api.v1alpha1.status import Phase
from grpo_operator.cluster.kinds import KubeObject


class Urgency(IntEnum):
    """How soon a job is reconciled when others wait too; the lowest first."""

    NEWS = 0
    """Something happened to a job that runs."""
    START = 1
    """A job that does not run yet: its pods are yet to be made, or to start."""
    ROUTINE = 2
    """Nothing is known to have happened."""


def urgency_of(job: KubeObject | None) -> Urgency:
    """What happens to a job that trains is news. One that is yet to make its first step, or is gone, can
    wait."""
    status = (job or {}).get("status", {})
    is_training = status.get("phase") == Phase.RUNNING and status.get("step", 0) > 0
    return Urgency.NEWS if is_training else Urgency.START
