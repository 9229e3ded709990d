"""The supervisor's sign of life for the liveness probe, which nobody can keep from it over the network."""

import time
from pathlib import Path

from grpo_api.contract.heartbeat import HEARTBEAT_SECONDS


class Heartbeat:
    """Touches a file from the supervisor's main loop."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._next = time.monotonic()

    def beat(self) -> float:
        """Touch the file when it is time to; returns when the next beat is due, on the monotonic clock."""
        now = time.monotonic()
        if now >= self._next:
            self._file.touch()
            self._next = now + HEARTBEAT_SECONDS
        return self._next
