"""Runs a program, and ends with it everything that it has started, also what has left its session.

It is run as a file, `python -I -S program_tree.py PARENT GRACE_SECONDS PROGRAM ARGUMENT...`, with the pipes
and the environment of the program, and needs nothing but Python: an episode waits for its start. Orphans of
the program become its children, so that none is lost. It ends with the exit code of the program, or with 128
and the signal that ended it; 127 where there is no such program. SIGTERM, which it also gets when PARENT
ends, is for the process group of the program, which is killed where it has not ended GRACE_SECONDS later.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_WAITED_FOR = {signal.SIGTERM, signal.SIGCHLD}
_NO_SUCH_PROGRAM = 127
_LONGEST_WAIT_SECONDS = 3600.0


def main(arguments: Sequence[str]) -> int:
    """Run the program to its end; returns the exit code."""
    parent, grace_seconds, *command = arguments
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        return 128 + signal.SIGTERM
    pid = _start(command)
    for pipe in (0, 1, 2):
        # the program alone has them: who reads its output reads to its end
        os.close(pipe)
    status = _wait_for(pid, grace_seconds=float(grace_seconds))
    last = _end_descendants(pid)
    code = os.waitstatus_to_exitcode(status if status is not None else last)
    return code if code >= 0 else 128 - code


def _start(command: list[str]) -> int:
    """Start the program, which leads a session of its own; returns its process id."""
    own = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != own:
            os._exit(128 + signal.SIGKILL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            # Python ignores them, and a program would go on to
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(2, f"{command[0]} cannot be run: {error}\n".encode())
    os._exit(_NO_SUCH_PROGRAM)


def _wait_for(pid: int, *, grace_seconds: float) -> int | None:
    """The status with which the program ends; None where its grace was over before."""
    deadline = None
    while True:
        seconds = _LONGEST_WAIT_SECONDS if deadline is None else deadline - time.monotonic()
        if seconds <= 0:
            return None
        arrived = signal.sigtimedwait(_WAITED_FOR, seconds)
        if arrived is not None and arrived.si_signo == signal.SIGTERM and deadline is None:
            deadline = time.monotonic() + grace_seconds
            _send_group(signal.SIGTERM, pid)
        if (status := _collect(pid)) is not None:
            return status


def _collect(pid: int) -> int | None:
    """Collect the children that have ended; the status of `pid` where it is one of them."""
    found = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if ended == pid:
            found = status
        elif not ended:
            return found


def _end_descendants(pid: int) -> int:
    """Kill all descendants of this process, and return once they have ended; the status of `pid` where it is
    one of them. They are stopped first, so that none starts another one meanwhile."""
    stopped: set[int] = set()
    while new := descendants(os.getpid()) - stopped:
        _send(signal.SIGSTOP, new)
        stopped |= new
    _send(signal.SIGKILL, descendants(os.getpid()))
    found = 0
    while True:
        try:
            # those of a child become ours when it is collected
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return found
        if ended == pid:
            found = status


def descendants(pid: int) -> set[int]:
    """The processes that descend from this one, as of now."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (parent := _parent(entry.name)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    left = [pid]
    while left:
        new = children.get(left.pop(), [])
        found.update(new)
        left += new
    return found


def _parent(name: str) -> int | None:
    try:
        with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
            # the name in parentheses may have spaces
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        # /proc may hide processes of other users, as with hidepid: nobody could end those either
        return None


def _send(number: signal.Signals, pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended since it was seen
            os.kill(pid, number)


def _send_group(number: signal.Signals, pid: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        # it leads no group yet; it is not collected, so it is there
        os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
