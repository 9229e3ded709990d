"""What a rank and the engine in its child process say to each other, by `frame_pipe`.

rank to child   what to start with; then calls, one at a time: {"call": "wake_up", "arguments": {...}},
                with a frame for each request that is to be sampled
child to rank   {"num_steps": 7} every second; {"finished": 3} with the completion of request 3 of a
                call; and the answer to the start and to each call: {}, with a frame of the logprobs that
                were asked for, or {"error": "UserError", "message": "..."}
"""

from collections.abc import Mapping
from typing import Any

from grpo_runtime.errors import UserError
from grpo_runtime.rollouts.errors import EngineError
from grpo_runtime.weight_sync.interface import WeightSyncError

_ERRORS: Mapping[str, type[Exception]] = {
    error.__name__: error for error in (UserError, EngineError, WeightSyncError)
}
"""Errors that arrive as what they were; all others arrive as an EngineError."""


def encode_error(error: BaseException) -> Mapping[str, Any]:
    """What the rank is told of an error."""
    for name, known in _ERRORS.items():
        if isinstance(error, known):
            return {"error": name, "message": str(error)}
    return {"error": EngineError.__name__, "message": f"{type(error).__name__}: {error}"}


def decode_error(header: Mapping[str, Any]) -> Exception:
    """The error that a message tells of."""
    return _ERRORS[header["error"]](header["message"])
