"""The process of an engine beside its rank, and what it starts: one process group, of which nothing is left.

A process that an engine leaves behind may hold the memory of its GPU. The group is killed before its first
process is reaped: until then its number cannot be that of another one. Only on Linux.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait

from grpo_runtime.engines.colocated.engine_process import StartedProcess, StartProcess
from grpo_runtime.process.kernel_state import is_stopped_by_kernel
from grpo_runtime.process.killed import was_killed_by


class ChildProcess:
    """A process that ends with all that it has started."""

    def __init__(self, arguments: Sequence[str], *, environment: Mapping[str, str], descriptor: int) -> None:
        """Start it with an open file descriptor, and nothing to read. Raises OSError when it cannot start."""
        self._lock = threading.Lock()
        # never a fork: a copy of a process that has used a GPU cannot use it
        self._popen = subprocess.Popen(
            arguments,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            pass_fds=[descriptor],
            process_group=0,
        )

    @property
    def pid(self) -> int:
        """Its process id, and that of its group."""
        return self._popen.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has ended. What it has started may go on."""
        with self._lock:
            return self._is_reaped or os.waitid(os.P_PID, self.pid, _LOOK | os.WNOHANG) is not None

    @property
    def is_stopped(self) -> bool:
        """Whether the kernel has stopped it, so that it cannot do anything."""
        with self._lock:
            if self._is_reaped:
                return False
            return is_stopped_by_kernel(self.pid)

    def join(self) -> None:
        """Wait until it has ended, and kill what it leaves in its group."""
        ended = os.pidfd_open(self.pid)
        try:
            wait([ended])
        finally:
            os.close(ended)
        self.kill()
        with self._lock:
            self._popen.wait()

    def kill(self) -> None:
        """Kill it and what it has started; does nothing after `end`."""
        with self._lock:
            if not self._is_reaped:
                os.killpg(self.pid, signal.SIGKILL)

    def end(self, *, seconds: float) -> str:
        """Give it so long to end, kill what is left of it and its group, and say how it ended."""
        ended = os.pidfd_open(self.pid)
        try:
            wait([ended], seconds)
        finally:
            os.close(ended)
        self.kill()
        with self._lock:
            return how_it_ended(self._popen.wait())

    @property
    def _is_reaped(self) -> bool:
        return self._popen.returncode is not None


_LOOK = os.WEXITED | os.WNOWAIT
"""Without reaping it."""


def spawned(arguments: Sequence[str], environment: Mapping[str, str]) -> StartProcess:
    """A child of the rank: `arguments` gets its end of the pipe and the rank's process id."""

    def start() -> StartedProcess:
        ours, theirs = Pipe()
        with theirs:
            process = ChildProcess(
                [*arguments, str(theirs.fileno()), str(os.getpid())],
                environment=environment,
                descriptor=theirs.fileno(),
            )
        return StartedProcess(process, ours)

    return start


def how_it_ended(code: int) -> str:
    """What an exit code says, which is minus the signal that killed a process, as a sentence about its
    engine."""
    if code >= 0:
        return f"its process ended with exit code {code}; see the log"
    return f"its process {was_killed_by(-code)}"
