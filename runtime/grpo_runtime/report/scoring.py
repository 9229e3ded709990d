"""The sentence about rewards that are waited for: for some seconds no group has been scored. Pure."""

from collections.abc import Sequence

from grpo_runtime.report.generation import STILL_SECONDS, rounded_down
from grpo_runtime.rewards.types import OpenCalls


def unscored_message(
    of_what: str, *, num_scored: int, num_groups: int, quiet_seconds: float, open_calls: Sequence[OpenCalls]
) -> str:
    """How many groups `of_what` are scored, and which functions have not answered; empty while groups are
    scored. The seconds are rounded down as those of a generation."""
    if quiet_seconds < STILL_SECONDS:
        return ""
    still = (
        f"{of_what}: {num_scored} of {num_groups} groups are scored, and none was in the last "
        f"{rounded_down(quiet_seconds)} s"
    )
    return "; ".join((still, *map(_of_function, open_calls)))


def _of_function(calls: OpenCalls) -> str:
    sentence = f"open calls of reward {calls.name}: {calls.number}"
    if calls.outage is None:
        return sentence
    outage = calls.outage
    since = rounded_down(outage.seconds)
    return f"{sentence}, and {outage.url} is out of reach for {since} s: {outage.why}"
