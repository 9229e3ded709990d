"""What ends together: a process with the one that started it, and with a process what it has started.

In a pod the end of process 1 ends everything. Anywhere else a killed server would leave an engine behind that
cannot be reached and keeps a gigabyte of memory.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_calls: list[Callable[[], None]] = []


def die_with_parent() -> None:
    """Let the kernel kill this process when the one that started it ends. Only for child processes, on Linux.

    Does nothing in a process that multiprocessing did not start. Raises OSError when the kernel refuses.
    """
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with(parent.pid)


def die_with(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent, `parent_pid`, ends. Only on Linux.

    A parent that has ended already counts too. It must have started this process from a thread that lives as
    long as the parent does. Raises OSError when the kernel refuses.
    """
    if sys.platform != "linux":
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        # the parent ended before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans(*, is_on: bool = True) -> None:
    """Become the parent of the children that our descendants leave behind when they end, or no longer. Only
    on Linux."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, int(is_on))


def at_end(call: Callable[[], None]) -> None:
    """Have `run_at_end` call this, to end what this process has started. When it is killed nothing is called:
    the kernel ends its children."""
    _calls.append(call)


def run_at_end() -> None:
    """Call what `at_end` was given, the last first, each once. For a process that ends as it stands, without
    destroying its objects."""
    while _calls:
        _calls.pop()()


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")
