"""When a pod is made again whose predecessors were taken away within seconds of their creation. Pure."""

from datetime import datetime, timedelta

from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.attempts import pause_seconds
from grpo_operator.observe.observed import Observed


def early_end(observed: Observed, place: str, now: datetime) -> tuple[ReasonMessage, float] | None:
    """Why nothing is made in this place now, and for how many seconds. None where nothing was taken away so
    soon, after the first time, and once the pause is over, which grows as that between attempts does."""
    found = observed.remembered.early_ends.get(place)
    if found is None:
        return None
    until = found.ended_at + timedelta(seconds=pause_seconds(found.num))
    left = (until - now).total_seconds()
    if left <= 0:
        return None
    message = (
        f"pod {found.name} was taken away {found.lived_seconds:.0f} s after it was made, the last of "
        f"{found.num} in a row: something in the cluster deletes such pods, as a cleanup policy, a "
        "descheduler or a queue would, and the audit log of the API server names it; the next one is made at "
        f"{until:%Y-%m-%dT%H:%M:%SZ}"
    )
    return ReasonMessage(Reason.POD_DELETED, message), left
