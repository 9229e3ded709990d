"""The process of an engine beside its rank: what a rank does with it, and its start as a child of the rank.

The other way to start one is an actor of Ray (`ray.rank_end`). Both lead a process group, of which nothing
is left: a process that an engine leaves behind may hold the memory of its GPU. The process of a pod that
talks to Ray (`ray.cluster`) is started and ended like a child, too. Only on Linux.
"""

import os
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from grpo_runtime.process.procfs import is_stopped_by_kernel
from grpo_runtime.process.termination import was_killed_by

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_OF_RANKS = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
    }
)
"""Torch's variables for the meeting of the ranks, which the engine is no member of."""


class EngineProcess(ABC):
    """A process that leads a process group, as a rank watches and ends it. How it was started is said by the
    class, and so is how it ended."""

    def __init__(self, pid: int) -> None:
        """Take over a process that runs, or has ended and is not reaped. Raises OSError when it is gone."""
        self.pid = pid
        """Its process id, and that of its group."""
        self._lock = threading.Lock()
        # from here on its number is this process or none
        self._pidfd = os.pidfd_open(pid)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended. What it has started may continue."""
        with self._lock:
            return self._is_over or bool(wait([self._pidfd], 0))

    @property
    def is_stopped(self) -> bool:
        """Whether the kernel has stopped it, so that it cannot do anything."""
        if self.has_ended:
            return False
        try:
            return is_stopped_by_kernel(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            # it ended meanwhile
            return False

    def kill(self) -> None:
        """Kill it and what it has started, which may continue when it has ended; does nothing after `end`."""
        with self._lock:
            if not self._is_over:
                # it may be no process any more, and its group have no other
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)

    def end(self, *, seconds: float | None = None) -> str:
        """Give it so long to end, or any time; kill what is left of it and its group, and say how it ended,
        as a sentence about its engine."""
        wait([self._pidfd], seconds)
        self.kill()
        wait([self._pidfd])
        with self._lock:
            os.close(self._pidfd)
            self._pidfd = -1
        return self._how_it_ended()

    @abstractmethod
    def _how_it_ended(self) -> str:
        """A sentence about its engine. It has ended, and its group was killed."""

    @property
    def _is_over(self) -> bool:
        return self._pidfd < 0


@dataclass(frozen=True)
class StartedProcess:
    """A process, and the rank's end of the connection to it."""

    process: EngineProcess
    connection: Connection


StartProcess = Callable[[], StartedProcess]
"""Starts one, in the thread that watches it until it ends. What it raises ends the start of the engine."""


def start_watched(
    start: StartProcess, watch: Callable[[StartedProcess], object], *, name: str
) -> tuple[StartedProcess, threading.Thread]:
    """Start a process in a new thread, which calls `watch` and must live as long as the process: the kernel
    ends a child with the thread that has started it. Raises what `start` raises."""
    started: Future[StartedProcess] = Future()

    def live() -> None:
        try:
            running = start()
        except Exception as error:
            started.set_exception(error)
            return
        started.set_result(running)
        watch(running)

    thread = threading.Thread(target=live, name=name, daemon=True)
    thread.start()
    return started.result(), thread


class ChildProcess(EngineProcess):
    """A child of the rank."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self._popen = popen
        super().__init__(popen.pid)

    def _how_it_ended(self) -> str:
        # reaped only now: until its group was killed its number could not be that of another one
        return how_it_ended(self._popen.wait())


def spawned(arguments: Sequence[str], environment: Mapping[str, str]) -> StartProcess:
    """A child of the rank: `arguments` gets its end of the pipe and the rank's process id. It has nothing to
    read, and starting it raises OSError when it cannot start."""

    def start() -> StartedProcess:
        ours, theirs = Pipe()
        with theirs:
            # never a fork: a copy of a process that has used a GPU cannot use it
            popen = subprocess.Popen(
                [*arguments, str(theirs.fileno()), str(os.getpid())],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        return StartedProcess(ChildProcess(popen), ours)

    return start


def how_it_ended(code: int) -> str:
    """What an exit code says, which is minus the signal that killed a process, as a sentence about its
    engine."""
    if code >= 0:
        return f"its process ended with exit code {code}; see the log"
    return f"its process {was_killed_by(-code)}"


def child_environment(
    environment: Mapping[str, str], *, of_engine: Mapping[str, str], device_index: int | None
) -> dict[str, str]:
    """The environment of an engine's process. `environment` is the rank's, `of_engine` what its engine must
    have besides, and `device_index` its GPU among those that it sees, None on CPU. The engine sees that one
    only."""
    kept = {name: value for name, value in environment.items() if name not in _OF_RANKS}
    if device_index is not None:
        visible = environment.get(VISIBLE_DEVICES)
        devices = visible.split(",") if visible else None
        kept[VISIBLE_DEVICES] = devices[device_index] if devices else str(device_index)
    return {**kept, **of_engine}
