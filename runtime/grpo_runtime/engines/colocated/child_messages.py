"""What a rank and the engine in its child process say to each other, in a pipe or a socket: messages of a
header and frames. Nothing is pickled.

rank to child   what to start with; then calls, one at a time: {"call": "wake_up", "arguments": {...}},
                with a frame for each request that is to be sampled
child to rank   {"num_steps": 7} every second; {"finished": 3} with the completion of request 3 of a
                call; and the answer to the start and to each call: {}, with a frame of the logprobs that
                were asked for, or {"error": "UserError", "message": "..."}

Processes import this before they have the environment that torch reads, so that it does not import torch.
"""

from collections.abc import Iterable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from grpo_runtime.rollouts.frames import Frame, encode_frames, read_frames


class Message(NamedTuple):
    """One message: JSON values by name, and frames."""

    header: Mapping[str, Any]
    frames: list[Frame]


def send(connection: Connection, header: Mapping[str, Any], frames: Iterable[Frame] = ()) -> None:
    """Write one message. Raises OSError when the other end is closed."""
    connection.send_bytes(encode_frames((Frame(header, {}), *frames)))


def receive(connection: Connection) -> Message:
    """The next message. Raises EOFError or OSError when the other end is closed, also in the middle of
    one."""
    first, *frames = read_frames(connection.recv_bytes())
    return Message(first.header, frames)


def encode_error(error: BaseException) -> Mapping[str, Any]:
    """The message about an error to the rank."""
    from grpo_runtime.rollouts.interface import EngineError

    for name, known in _known_errors().items():
        if isinstance(error, known):
            return {"error": name, "message": str(error)}
    return {"error": EngineError.__name__, "message": f"{type(error).__name__}: {error}"}


def decode_error(header: Mapping[str, Any]) -> Exception:
    """The error that a message is about."""
    return _known_errors()[header["error"]](header["message"])


def _known_errors() -> Mapping[str, type[Exception]]:
    """Errors that arrive as what they were; all others arrive as an EngineError."""
    from grpo_runtime.errors import UserError
    from grpo_runtime.rollouts.interface import EngineError
    from grpo_runtime.weight_sync.interface import WeightSyncError

    return {error.__name__: error for error in (UserError, EngineError, WeightSyncError)}
