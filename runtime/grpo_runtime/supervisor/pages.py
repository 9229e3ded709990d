"""The page of a run and its completions, for a person who may forward a port of the trainer pod.

They show the data of the job, so only a client inside the pod gets them: `kubectl port-forward` is one,
because its connections come from the pod's own loopback interface. A process of its own makes the answer and
sends it, one at a time: it imports what process 1 must not, and a client that reads slowly keeps nobody
waiting.
"""

import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from socket import socket

from grpo_api.contract.endpoints import REPORT_PATH, SAMPLES_PATH

PAGE_PATHS = frozenset({REPORT_PATH, SAMPLES_PATH})
_INSIDE = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
"""Addresses of clients in the pod. Not all of 127.0.0.0/8: a service mesh has another one for what comes from
outside."""
PAGE_COMMAND = (sys.executable, "-m", "grpo_runtime.supervisor.page_process")


class PageRefusedError(Exception):
    """A page is not made; `status` is that of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Pages:
    """Starts the process that answers a request for a page. It ends with the thread that has started it."""

    def __init__(self, output_dir: Path, *, command: Sequence[str] = PAGE_COMMAND) -> None:
        self._output_dir = output_dir
        self._command = command
        self._process: int | None = None
        """The newest process, as a pidfd."""

    def answer(self, path: str, query: str, *, connection: socket, client: str) -> None:
        """Let a process answer this request on a copy of `connection`.

        Raises PageRefusedError when the client is not in this pod, and while another page is made.
        """
        if client not in _INSIDE:
            raise PageRefusedError(
                403,
                f"{path} is for clients inside this pod: kubectl grpo {path.removeprefix('/')} NAME, or "
                "kubectl port-forward",
            )
        if self._is_busy():
            raise PageRefusedError(503, "another page of this run is being made: try again in some seconds")
        connection.settimeout(None)  # both copies have one mode, and the process writes as into a file
        arguments = [*self._command, path, query, str(self._output_dir), str(os.getpid())]
        pid = os.posix_spawn(
            arguments[0],
            arguments,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, connection.fileno(), 1)],
            # it would inherit the signals that are blocked here because the supervisor waits for them
            setsigmask=(),
        )
        self._process = _opened(pid)

    def _is_busy(self) -> bool:
        """Whether the newest process still runs. The supervisor collects it, as any child."""
        if self._process is None:
            return False
        if not select.select([self._process], [], [], 0)[0]:
            return True
        os.close(self._process)
        self._process = None
        return False


def _opened(pid: int) -> int | None:
    """A pidfd; None where the supervisor has already collected the process."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
