"""The sentence about a generation that stands still: for some seconds no sample has been finished. Pure."""

from grpo_runtime.report.engine_notes import stopped_message
from grpo_runtime.report.still import STILL_SECONDS, rounded_down
from grpo_runtime.rollouts.interface import Generation

_MAX_ENGINES = 4


def still_message(generation: Generation, *, step: int) -> str:
    """What stands still in `step`, since when, and on which engines; empty while samples finish."""
    if generation.quiet_seconds < STILL_SECONDS:
        return ""
    seconds = rounded_down(generation.quiet_seconds)
    given = sorted(generation.given.items(), key=lambda item: (-item[1], item[0]))
    places = [f"{number} on {engine}" for engine, number in given[:_MAX_ENGINES]]
    if len(given) > _MAX_ENGINES:
        rest = given[_MAX_ENGINES:]
        places.append(f"{sum(number for _, number in rest)} on {len(rest)} other engines")
    if generation.num_waiting:
        places.append(f"{generation.num_waiting} not given to an engine yet")
    done = f"step {step}: {generation.num_done} of {generation.num_samples} samples are done"
    still = f"{done}, and none was finished in the last {seconds} s; open are {', '.join(places)}"
    return still + stopped_message(generation)
