"""The supervisor's sign of life for the liveness probe, which nobody can keep from it over the network."""

import time
from pathlib import Path

from grpo_api.contract.heartbeat import HEARTBEAT_SECONDS


class Heartbeat:
    """Touches a file from the supervisor's main loop. Without a file it does nothing."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._next = time.monotonic()

    def beat(self) -> float | None:
        """Touch the file when it is time to; returns when the next beat is due, on the monotonic clock."""
        if self._file is None:
            return None
        now = time.monotonic()
        if now >= self._next:
            self._file.touch()
            self._next = now + HEARTBEAT_SECONDS
        return self._next
