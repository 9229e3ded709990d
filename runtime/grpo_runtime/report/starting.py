"""What rank 0 reports before it has a Reporter: what it reads before the first step."""

import time
from collections.abc import Callable
from pathlib import Path

from grpo_runtime.report.progress import ProgressFile, read_progress

_SECONDS = 1.0
"""How often it reports at most."""


class StartingReport:
    """The progress that the supervisor has begun, as it goes on while rank 0 reads. The trainer's state stays
    Starting: only bytes raise its heartbeat, by which the operator and local mode tell a start that takes
    long from one that stands still."""

    def __init__(self, run_dir: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Reports nothing where `run_dir` has no progress."""
        known = read_progress(run_dir)
        self._file = ProgressFile(run_dir, known) if known else None
        self._clock = clock
        self._reported_at: float | None = None
        self._num_moved = 0

    def moves(self, message: str, *, num_bytes: int) -> None:
        """Report what is read, and that `num_bytes` have been up to now, unless that was reported just
        before. Only more of them are a sign of life: rank 0 itself lives on when a volume does not answer."""
        now = self._clock()
        if self._file is None or (self._reported_at is not None and now - self._reported_at < _SECONDS):
            return
        self._reported_at = now
        is_moving = num_bytes > self._num_moved
        self._num_moved = max(num_bytes, self._num_moved)
        self._file.update(is_sign_of_life=is_moving, message=message or self._file.latest.message)
