"""The actor that hosts an engine: connects to its rank, becomes what a child of the rank would be, and serves
it until it ends. Its other end is `rank_end`.

Imports nothing heavy: torch reads its environment when it is imported, and only the rank knows that.
"""

import os
import signal
import socket
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import NoReturn

from grpo_runtime.engines.colocated.child_messages import receive

_OF_RAY = "RAY_"


def become(environment: Mapping[str, str]) -> None:
    """Make this process's environment that one, but for Ray's own variables. Only what differs changes: Ray's
    threads may read the rest at any time."""
    for name in os.environ.keys() - environment.keys():
        if not name.startswith(_OF_RAY):
            del os.environ[name]
    for name, value in environment.items():
        if not name.startswith(_OF_RAY) and os.environ.get(name) != value:
            os.environ[name] = value


class EngineActor:
    """One engine. Ray makes it in the bundle of its rank, and starts no other when it ends."""

    def serve(self, path: str, token: str) -> NoReturn:
        """Serve the rank that listens at `path` and knows `token`, and end with it."""
        # what the engine starts ends with it
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        rank = socket.socket(socket.AF_UNIX)
        rank.connect(path)
        rank.sendall(token.encode())
        _, outputs, _, _ = socket.recv_fds(rank, 1, 2)
        for ours, theirs in zip((1, 2), outputs, strict=True):
            os.dup2(theirs, ours)
            os.close(theirs)
        connection = Connection(rank.detach())
        environment: Mapping[str, str] = receive(connection).header["environment"]
        become(environment)
        from grpo_runtime.engines.colocated.engine_child import make_engine_of, serve_to_the_end
        from grpo_runtime.engines.registry import engine_kind

        serve_to_the_end(connection, make_engine=partial(make_engine_of, engine_kind()))
