"""The one place that makes status.lastFailure, whatever it is about. Pure."""

from dataclasses import dataclass

from grpo_api.contract.environment import Role
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import LastFailure

_LONGEST_MESSAGE = 4096


@dataclass(frozen=True)
class Place:
    """Where something went wrong; empty for what is about no pod."""

    role: Role | None = None
    pod: str = ""
    node: str = ""
    container: str = ""


NOWHERE = Place()


def last_failure(
    why: ReasonMessage, *, attempt: int, place: Place = NOWHERE, exit_code: int | None = None
) -> LastFailure:
    """What stands in the status about a failure, or about something that blocks the job."""
    return LastFailure(
        attempt=attempt,
        role=place.role.value if place.role else "",
        pod=place.pod,
        node=place.node,
        container=place.container,
        reason=why.reason,
        exit_code=exit_code,
        message=why.message[:_LONGEST_MESSAGE],
    )
