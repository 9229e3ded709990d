"""Messages between two processes: JSON in a pipe or a socket, nothing is pickled. Imports nothing heavy."""

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

Message = dict[str, Any]


def send(connection: Connection, message: Mapping[str, Any]) -> None:
    """Write one message. Raises OSError when the other end is closed."""
    connection.send_bytes(json.dumps(message).encode())


def receive(connection: Connection) -> Message:
    """The next message. Raises EOFError or OSError when the other end is closed, also in the middle of
    one."""
    message: Message = json.loads(connection.recv_bytes())
    return message
