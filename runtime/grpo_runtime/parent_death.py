"""Ties the life of a process to the one that started it.

In a pod the end of process 1 ends everything. Anywhere else a killed server would leave an engine behind that
nobody can reach, with its gigabyte of memory.
"""

import ctypes
import multiprocessing
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Let the kernel kill this process when the one that started it ends. Only for child processes, on Linux.

    Does nothing in a process that multiprocessing did not start. Raises OSError when the kernel refuses.
    """
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with(parent.pid)


def die_with(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent ends, which is or was `parent_pid`. Only on Linux.

    The parent must have started it from a thread that lives as long as the parent. Raises OSError when the
    kernel refuses.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        # it ended before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)
