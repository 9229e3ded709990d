"""What a rank and the engine in its child process say to each other: JSON in a pipe, nothing is pickled.

    rank to child   what to start with; then calls, one at a time: {"call": "wake_up", "arguments": {...}}
    child to rank   {"num_steps": 7} every second; {"finished": 3, ...} for each completion of a call;
                    and the answer to the start and to each call, {"answer": ..., "weight_version": "1.4"}
                    or {"error": "UserError", "message": "..."}

Floats keep every bit: JSON writes as many digits as it takes.
"""

from collections.abc import Mapping

from grpo_runtime.colocated.json_pipe import Message
from grpo_runtime.colocated.rank_engine import Completion
from grpo_runtime.errors import UserError
from grpo_runtime.rollout.errors import EngineError
from grpo_runtime.rollout.interface import GenerateRequest
from grpo_runtime.weight_sync.interface import WeightSyncError

_ERRORS: Mapping[str, type[Exception]] = {
    error.__name__: error for error in (UserError, EngineError, WeightSyncError)
}
"""Errors that arrive as what they were; all others arrive as an EngineError."""


def encode_error(error: BaseException) -> Message:
    """What the rank is told of an error."""
    for name, known in _ERRORS.items():
        if isinstance(error, known):
            return {"error": name, "message": str(error)}
    return {"error": EngineError.__name__, "message": f"{type(error).__name__}: {error}"}


def decode_error(message: Message) -> Exception:
    """See `encode_error`."""
    return _ERRORS[message["error"]](message["message"])


def encode_request(request: GenerateRequest) -> Message:
    """One completion to sample."""
    return {
        "prompt_ids": request.prompt_ids,
        "seed": request.seed,
        "is_evaluation": request.is_evaluation,
        "max_tokens": request.max_tokens,
    }


def decode_request(message: Message) -> GenerateRequest:
    """See `encode_request`."""
    return GenerateRequest(
        prompt_ids=tuple(message["prompt_ids"]),
        seed=message["seed"],
        is_evaluation=message["is_evaluation"],
        max_tokens=message["max_tokens"],
    )


def encode_finished(index: int, completion: Completion) -> Message:
    """The completion of the request `index` of the running call."""
    return {
        "finished": index,
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "is_terminated": completion.is_terminated,
    }


def decode_finished(message: Message) -> tuple[int, Completion]:
    """See `encode_finished`."""
    completion = Completion(
        token_ids=tuple(message["token_ids"]),
        logprobs=tuple(message["logprobs"]),
        is_terminated=message["is_terminated"],
    )
    return message["finished"], completion
