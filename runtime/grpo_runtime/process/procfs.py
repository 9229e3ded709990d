"""What /proc says of processes: whether one can continue, and how much memory this one has in use."""

import os
from pathlib import Path

HELD = {
    "T": "is stopped (by SIGSTOP) while it {}",
    "t": "is held by a debugger while it {}",
    "D": "hangs in the kernel, mostly on a volume or a device, while it {}",
}
"""States in which a process cannot continue by itself, with what is said of one that does something."""
_STATM = Path("/proc/self/statm")
_UNIT_BYTES = 16 << 20
"""Less may come and go while nothing is read."""


def kernel_state(pid: int) -> str:
    """The letter in /proc/PID/stat, such as R, S, D or T. Raises FileNotFoundError or ProcessLookupError when
    the process has ended."""
    # the name in parentheses may have spaces
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_stopped_by_kernel(pid: int) -> bool:
    """Whether a signal has stopped the process. Raises as `kernel_state` does."""
    return kernel_state(pid) == "T"


class GrowingMemory:
    """Measures how much a library has read that does not report it: what it reads stays in memory."""

    def __init__(self) -> None:
        self._most = _resident_units()

    def grown(self) -> int:
        """By how many bytes this process has grown beyond the most that it ever had in use, as far as earlier
        calls have reported, in units of 16 MiB."""
        now, before = _resident_units(), self._most
        self._most = max(now, before)
        return (self._most - before) * _UNIT_BYTES


def _resident_units() -> int:
    num_pages = int(_STATM.read_text().split()[1])
    return num_pages * os.sysconf("SC_PAGE_SIZE") // _UNIT_BYTES
