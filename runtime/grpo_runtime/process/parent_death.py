"""Ends a process together with the one that started it, and adopts processes whose parent has ended.

In a pod the end of process 1 ends everything. Anywhere else a killed server would leave an engine behind that
cannot be reached and keeps a gigabyte of memory.
"""

import ctypes
import multiprocessing
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


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


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")
