"""The process of a pod that talks to Ray, as the first rank of the pod starts it."""

import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from grpo_runtime.engines.colocated.child_process import ChildProcess
from grpo_runtime.engines.colocated.frame_pipe import receive, send
from grpo_runtime.engines.colocated.ray.errors import RayLostError
from grpo_runtime.engines.colocated.ray.node_folder import log_tails
from grpo_runtime.engines.colocated.ray.node_settings import NodePlace

POD_PROCESS = (sys.executable, "-m", "grpo_runtime.engines.colocated.ray.pod_process")
_STEP_SECONDS = 240.0
"""How long the pod's process may take for a step of bringing Ray up; it gives up sooner itself."""


class RayPod:
    """The process of this pod that talks to Ray. It ends with this one."""

    def __init__(
        self, place: NodePlace, *, environment: Mapping[str, str], command: tuple[str, ...] = POD_PROCESS
    ) -> None:
        """Start it. Raises RayLostError when it ends at once."""
        self._folder = place.folder
        self._command = command
        self._has_failed = False
        self._process: ChildProcess
        self._connection, theirs = Pipe()
        is_running: Future[None] = Future()
        # the kernel ends a child with the thread that has started it: this one lives as long as the child
        self._watcher = threading.Thread(
            target=self._live, args=(environment, theirs, is_running), name="watch-ray", daemon=True
        )
        self._watcher.start()
        is_running.result()
        try:
            send(self._connection, {**asdict(place), "folder": str(place.folder)})
        except OSError as error:
            lost = self._failed("Ray ended in this pod while it started; see the log")
            self.close()
            raise lost from error

    def wait_for_node(self) -> str:
        """Wait until the pod's node runs; returns where that of the first pod listens. Raises RayLostError
        when it does not start."""
        head: str = self._next_step()["head"]
        return head

    def wait_for_places(self) -> None:
        """Wait until every bundle has its place, after `wait_for_node`. Raises RayLostError when one has
        none."""
        self._next_step()

    def close(self) -> None:
        """Kill it and all that Ray has started in this pod, and wait until it has ended. If it has ended by
        itself, what Ray's own logs say of it is logged."""
        has_failed = self._has_failed or self._process.has_ended
        self._process.kill()
        self._watcher.join()
        self._connection.close()
        if has_failed:
            log_tails(self._folder)

    def _next_step(self) -> Mapping[str, Any]:
        try:
            if not self._connection.poll(_STEP_SECONDS):
                raise self._failed(f"Ray did not start in this pod within {_STEP_SECONDS:g} s")
            message = receive(self._connection).header
        except (EOFError, OSError) as error:
            raise self._failed("Ray ended in this pod while it started; see the log") from error
        if "error" in message:
            raise self._failed(f"Ray did not start in this pod: {message['error']}")
        return message

    def _failed(self, why: str) -> RayLostError:
        self._has_failed = True
        return RayLostError(why)

    def _live(self, environment: Mapping[str, str], theirs: Connection, is_running: "Future[None]") -> None:
        try:
            with theirs:
                self._process = ChildProcess(
                    [*self._command, str(theirs.fileno()), str(os.getpid())],
                    environment=environment,
                    descriptor=theirs.fileno(),
                )
        except OSError as error:
            is_running.set_exception(error)
            return
        is_running.set_result(None)
        self._process.join()
