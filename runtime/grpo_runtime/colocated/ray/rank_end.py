"""A rank's end of Ray: starts the process of its pod that talks to Ray, and asks it for engines."""

import hmac
import os
import secrets
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from typing import Any

from grpo_runtime.colocated.child_process import ChildProcess
from grpo_runtime.colocated.engine_process import StartedProcess, StartProcess, is_stopped_by_kernel
from grpo_runtime.colocated.json_pipe import receive, send
from grpo_runtime.colocated.ray.errors import RayLostError
from grpo_runtime.colocated.ray.pod_socket import ENGINES_SOCKET

_POD_PROCESS = (sys.executable, "-m", "grpo_runtime.colocated.ray.pod_process")
_ACTOR_SECONDS = 300.0
"""How long an actor may take to connect: a worker of Ray has to start."""
_STEP_SECONDS = 240.0
"""How long the pod's process may take for a step of bringing Ray up; it gives up sooner itself."""
_TOKEN_CHARACTERS = 32
_SAY_END_SECONDS = 2.0


class RayPod:
    """The process of this pod that talks to Ray. It ends with this one."""

    def __init__(self, environment: Mapping[str, str], *, start: Mapping[str, Any]) -> None:
        """Start it, with this first message."""
        self._process: ChildProcess
        self._connection, theirs = Pipe()
        is_running: Future[None] = Future()
        # the kernel ends a child with the thread that has started it: this one lives as long as the child
        self._watcher = threading.Thread(
            target=self._live, args=(environment, theirs, is_running), name="watch-ray", daemon=True
        )
        self._watcher.start()
        is_running.result()
        send(self._connection, start)

    def next_step(self) -> Mapping[str, Any]:
        """Wait until it has made its next step. Raises RayLostError when it could not."""
        try:
            if not self._connection.poll(_STEP_SECONDS):
                raise RayLostError(f"Ray did not start in this pod within {_STEP_SECONDS:g} s")
            message = receive(self._connection)
        except (EOFError, OSError) as error:
            raise RayLostError("Ray ended in this pod while it started; see the log") from error
        if "error" in message:
            raise RayLostError(f"Ray did not start in this pod: {message['error']}")
        return message

    def close(self) -> None:
        """Kill it and all that Ray has started in this pod, and wait until it has ended."""
        self._process.kill()
        self._watcher.join()

    def _live(self, environment: Mapping[str, str], theirs: Connection, is_running: "Future[None]") -> None:
        try:
            with theirs:
                self._process = ChildProcess(
                    [*_POD_PROCESS, str(theirs.fileno()), str(os.getpid())],
                    environment=environment,
                    descriptor=theirs.fileno(),
                )
        except OSError as error:
            is_running.set_exception(error)
            return
        is_running.set_result(None)
        self._process.join()


class RayActorProcess:
    """The process of an actor, in this container. See `EngineProcess`."""

    def __init__(self, pid: int, pod: Connection) -> None:
        self.pid = pid
        self._pod = pod
        self._lock = threading.Lock()
        # from here on its number is this process or none
        self._pidfd = os.pidfd_open(pid)

    @property
    def has_ended(self) -> bool:
        """See `EngineProcess`."""
        with self._lock:
            return self._is_over or bool(wait([self._pidfd], 0))

    @property
    def is_stopped(self) -> bool:
        """See `EngineProcess`."""
        if self.has_ended:
            return False
        try:
            return is_stopped_by_kernel(Path(f"/proc/{self.pid}/stat").read_text())
        except (FileNotFoundError, ProcessLookupError):
            # it ended meanwhile
            return False

    def kill(self) -> None:
        """See `EngineProcess`. The actor leads a group of its own."""
        if not self.has_ended:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                # it ended meanwhile
                return

    def end(self, *, seconds: float) -> str:
        """See `EngineProcess`."""
        wait([self._pidfd], seconds)
        self.kill()
        wait([self._pidfd])
        with self._lock:
            os.close(self._pidfd)
            self._pidfd = -1
        with self._pod:
            return f"its Ray actor ended: {self._what_ray_says()}"

    def _what_ray_says(self) -> str:
        try:
            if self._pod.poll(_SAY_END_SECONDS):
                said: str = receive(self._pod)["ended"]
                return said
        except (EOFError, OSError):
            return "Ray has ended in this pod"
        return "see the log"

    @property
    def _is_over(self) -> bool:
        return self._pidfd < 0


def actor_of(rank: int, *, folder: Path, environment: Mapping[str, str]) -> StartProcess:
    """The actor in the bundle of this rank. `folder` is that of the pod's node, and `environment` what a
    child of the rank would have."""

    def start() -> StartedProcess:
        token = secrets.token_hex(_TOKEN_CHARACTERS // 2)
        path = folder / f"engine-{rank}-{secrets.token_hex(4)}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1)
            try:
                pod = _ask(folder, {"rank": rank, "path": str(path), "token": token})
                actor = _accepted(listener, pod, token=token)
            finally:
                path.unlink()
        pid = _pid_of(actor)
        socket.send_fds(actor, [b"\0"], [sys.stdout.fileno(), sys.stderr.fileno()])
        connection = Connection(actor.detach())
        send(connection, environment)
        return StartedProcess(RayActorProcess(pid, pod), connection)

    return start


def _ask(folder: Path, request: Mapping[str, Any]) -> Connection:
    try:
        pod = Client(str(folder / ENGINES_SOCKET))
        send(pod, request)
    except OSError as error:
        raise RayLostError("Ray has ended in this pod, and with it its engines; see the log") from error
    return pod


def _accepted(listener: socket.socket, pod: Connection, *, token: str) -> socket.socket:
    """The connection of the actor that knows the token. Raises RayLostError when none comes."""
    deadline = time.monotonic() + _ACTOR_SECONDS
    while True:
        ready = wait([listener, pod], max(0.0, deadline - time.monotonic()))
        if listener in ready:
            actor, _ = listener.accept()
            actor.settimeout(_SAY_END_SECONDS)
            said = actor.recv(_TOKEN_CHARACTERS, socket.MSG_WAITALL)
            if hmac.compare_digest(said, token.encode()):
                actor.settimeout(None)
                return actor
            actor.close()
        elif pod in ready:
            try:
                why = receive(pod)["ended"]
            except (EOFError, OSError):
                why = "Ray has ended in this pod"
            raise RayLostError(f"Ray did not start the engine of this rank: {why}")
        else:
            raise RayLostError(f"Ray did not start the engine of this rank within {_ACTOR_SECONDS:g} s")


def _pid_of(actor: socket.socket) -> int:
    """The process at the other end, as the kernel knows it."""
    credentials = struct.Struct("3i")
    pid, _, _ = credentials.unpack(actor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))
    return int(pid)
