"""What an agent returns: a reward, or an object with a reward and a state."""

import json
import math
from collections.abc import Mapping
from typing import Any

MAX_QUOTED_CHARACTERS = 1500
"""So much of the end of what an agent wrote is in an error."""
_RESULT = ("reward", "state")


def result_of(found: object) -> dict[str, Any]:
    """The reward and the state that an agent returned, as the last line of its episode has them. Raises
    TypeError or ValueError for what is neither a number, nothing, nor such an object."""
    if not isinstance(found, Mapping):
        return {"reward": _reward(found), "state": None}
    if unknown := sorted(map(str, found.keys() - set(_RESULT))):
        raise TypeError(
            f"the agent returned an object with {', '.join(unknown)}: it may have reward and state"
        )
    state = found.get("state")
    try:
        json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"the state that the agent returned is no JSON: {error}") from error
    return {"reward": _reward(found.get("reward")), "state": state}


def _reward(found: object) -> float | None:
    if found is None:
        return None
    if not isinstance(found, int | float):
        raise TypeError(
            f"the agent returned {type(found).__name__}: return a number, or None, or a dict with such a "
            "reward and a state"
        )
    try:
        number = float(found)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"the agent returned {number}: return a finite number, or None")
    return number
