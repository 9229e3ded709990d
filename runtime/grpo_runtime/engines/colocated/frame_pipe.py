"""Messages between two processes in a pipe or a socket: a header, and frames with it; nothing is pickled.
Imports nothing heavy."""

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
