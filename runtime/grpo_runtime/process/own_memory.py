"""How much memory this process has in use, as Linux counts it."""

import os
from pathlib import Path

_STATM = Path("/proc/self/statm")
_UNIT_BYTES = 16 << 20
"""Less may come and go while nothing is read."""


class GrowingMemory:
    """Tells how much a library has read that does not tell itself: what it reads stays in memory."""

    def __init__(self) -> None:
        self._most = _resident_units()

    def grown(self) -> int:
        """By how many bytes this process has grown beyond the most that it ever had in use, as far as earlier
        calls have told, in units of 16 MiB."""
        now, before = _resident_units(), self._most
        self._most = max(now, before)
        return (self._most - before) * _UNIT_BYTES


def _resident_units() -> int:
    num_pages = int(_STATM.read_text().split()[1])
    return num_pages * os.sysconf("SC_PAGE_SIZE") // _UNIT_BYTES
