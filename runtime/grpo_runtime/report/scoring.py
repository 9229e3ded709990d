"""The sentence about rewards that are waited for: for some seconds no group has been scored. Pure."""

from collections.abc import Sequence

from grpo_runtime.report.still import STILL_SECONDS, rounded_down
from grpo_runtime.rewards.types import OpenCalls

_MAX_FUNCTIONS = 3


def unscored_message(
    of_what: str, *, num_scored: int, num_groups: int, quiet_seconds: float, open_calls: Sequence[OpenCalls]
) -> str:
    """How many groups `of_what` are scored, and which functions have not answered; empty while groups are
    scored. Those whose services are out of reach come first, then those with most open calls, and the rest is
    counted. The seconds are rounded down as those of a generation."""
    if quiet_seconds < STILL_SECONDS:
        return ""
    still = (
        f"{of_what}: {num_scored} of {num_groups} groups are scored, and none was in the last "
        f"{rounded_down(quiet_seconds)} s"
    )
    told = sorted(open_calls, key=lambda calls: (calls.outage is None, -calls.number, calls.name))
    rest = told[_MAX_FUNCTIONS:]
    others = f"open calls of {len(rest)} other {'rewards' if len(rest) > 1 else 'reward'}"
    counted = [f"{others}: {sum(calls.number for calls in rest)}"] if rest else []
    return "; ".join((still, *map(_of_function, told[:_MAX_FUNCTIONS]), *counted))


def _of_function(calls: OpenCalls) -> str:
    sentence = f"open calls of reward {calls.name}: {calls.number}"
    if calls.outage is None:
        return sentence
    outage = calls.outage
    since = rounded_down(outage.seconds)
    return f"{sentence}, and {outage.url} is out of reach for {since} s: {outage.why}"
