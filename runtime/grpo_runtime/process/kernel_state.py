"""What the kernel says of a process: runs it, or is it held?"""

from pathlib import Path

HELD = {
    "T": "is stopped (by SIGSTOP) while it {}",
    "t": "is held by a debugger while it {}",
    "D": "hangs in the kernel, mostly on a volume or a device, while it {}",
}
"""States in which a process cannot go on by itself, with what is said of one that does something."""


def kernel_state(pid: int) -> str:
    """The letter in /proc/PID/stat, such as R, S, D or T. Raises FileNotFoundError or ProcessLookupError when
    the process has ended."""
    # the name in parentheses may have spaces
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_stopped_by_kernel(pid: int) -> bool:
    """Whether a signal has stopped the process. Raises as `kernel_state` does."""
    return kernel_state(pid) == "T"
