"""A rank's end of Ray: asks the process of its pod that talks to Ray for an actor, and takes over the process
of that actor as the process of its engine."""

import hmac
import secrets
import socket
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from typing import Any

from grpo_runtime.engines.colocated.child_messages import receive, send
from grpo_runtime.engines.colocated.engine_process import EngineProcess, StartedProcess, StartProcess
from grpo_runtime.engines.colocated.ray.cluster import RayLostError
from grpo_runtime.engines.colocated.ray.node_folder import ENGINES_SOCKET
from grpo_runtime.rollouts.interface import EngineGoneError

_ACTOR_SECONDS = 300.0
"""How long an actor may take to connect: a worker of Ray has to start."""
_TOKEN_CHARACTERS = 32
_SAY_SECONDS = 2.0
"""How long an actor may take to say its token, and the pod's process to say how an actor ended."""
_RAY_IS_GONE = "Ray has ended in this pod, and with it its engines; see the log"


class RayActorProcess(EngineProcess):
    """The process of an actor, in this container. The pod's process says how it ended."""

    def __init__(self, pid: int, pod: Connection) -> None:
        super().__init__(pid)
        self._pod = pod

    def _how_it_ended(self) -> str:
        with self._pod:
            try:
                why = _why_ended(self._pod)
            except (EOFError, OSError):
                why = "Ray has ended in this pod"
            return f"its Ray actor ended: {why}"


def actor_of(rank: int, *, folder: Path, environment: Mapping[str, str]) -> StartProcess:
    """The actor in the bundle of this rank. `folder` is that of the pod's node, and `environment` what a
    child of the rank would have.

    It raises EngineGoneError when the actor ends while it starts, and RayLostError when Ray itself has ended
    or starts none.
    """

    def start() -> StartedProcess:
        token = secrets.token_hex(_TOKEN_CHARACTERS // 2)
        path = folder / f"engine-{rank}-{secrets.token_hex(4)}"
        with ExitStack() as undone, socket.socket(socket.AF_UNIX) as listener:
            pod = undone.enter_context(_pod_of(folder))
            listener.bind(str(path))
            listener.listen(1)
            try:
                _ask(pod, {"rank": rank, "path": str(path), "token": token})
                actor = undone.enter_context(_accepted(listener, pod, token=token))
            finally:
                path.unlink()
            started = _taken_over(actor, pod, environment=environment)
            undone.pop_all()
            return started

    return start


def _pod_of(folder: Path) -> Connection:
    try:
        return Client(str(folder / ENGINES_SOCKET))
    except OSError as error:
        raise RayLostError(_RAY_IS_GONE) from error


def _ask(pod: Connection, request: Mapping[str, Any]) -> None:
    try:
        send(pod, request)
    except OSError as error:
        raise RayLostError(_RAY_IS_GONE) from error


def _accepted(listener: socket.socket, pod: Connection, *, token: str) -> socket.socket:
    """The connection of the actor that knows the token."""
    deadline = time.monotonic() + _ACTOR_SECONDS
    while True:
        ready = wait([listener, pod], max(0.0, deadline - time.monotonic()))
        if listener in ready:
            actor, _ = listener.accept()
            if _says(actor, token):
                return actor
            # if that was the actor, the pod's process says how it ended
            actor.close()
        elif pod in ready:
            raise _ended_while_it_started(pod)
        else:
            raise RayLostError(f"Ray did not start the engine of this rank within {_ACTOR_SECONDS:g} s")


def _says(actor: socket.socket, token: str) -> bool:
    actor.settimeout(_SAY_SECONDS)
    try:
        said = actor.recv(_TOKEN_CHARACTERS, socket.MSG_WAITALL)
    except OSError:
        # it says nothing, or has ended
        return False
    actor.settimeout(None)
    return hmac.compare_digest(said, token.encode())


def _taken_over(actor: socket.socket, pod: Connection, *, environment: Mapping[str, str]) -> StartedProcess:
    """The actor at this connection, with all that it needs to start."""
    try:
        process = RayActorProcess(_pid_of(actor), pod)
    except OSError as error:
        raise _ended_while_it_started(pod) from error
    try:
        socket.send_fds(actor, [b"\0"], [sys.stdout.fileno(), sys.stderr.fileno()])
        connection = Connection(actor.detach())
        with ExitStack() as undone:
            undone.enter_context(connection)
            send(connection, {"environment": dict(environment)})
            undone.pop_all()
    except OSError as error:
        raise EngineGoneError(process.end(seconds=_SAY_SECONDS)) from error
    return StartedProcess(process, connection)


def _ended_while_it_started(pod: Connection) -> EngineGoneError | RayLostError:
    try:
        return EngineGoneError(f"its Ray actor ended while it started: {_why_ended(pod)}")
    except (EOFError, OSError):
        return RayLostError(_RAY_IS_GONE)


def _why_ended(pod: Connection) -> str:
    """What Ray says of the end of an actor. Raises EOFError or OSError when Ray itself has ended."""
    if not pod.poll(_SAY_SECONDS):
        return "see the log"
    said: str = receive(pod).header["ended"]
    return said


def _pid_of(actor: socket.socket) -> int:
    """The process at the other end, as the kernel knows it."""
    credentials = struct.Struct("3i")
    pid, _, _ = credentials.unpack(actor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))
    return int(pid)
