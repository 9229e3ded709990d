"""The progress of an attempt: rank 0 writes it, the supervisor serves it with what it sees itself, and the
operator folds it into status. Needs no torch."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_api.contract.progress import Progress
from grpo_runtime.report.position import read_positions
from grpo_runtime.storage.files import read_if_there, write_atomically

PROGRESS_FILE = "progress.json"
STANDSTILL_FILE = "standstill"
"""The file of the standstill sentence, which the supervisor writes while no training process of the pod makes
progress."""
STILL_SECONDS = 10.0
"""A generation or scores without progress for this long are reported. Rank 0's next report and the operator's
next poll follow within 5 s."""
_MIN_REPORT_INTERVAL_SECONDS = 1.0
"""Shortest time between two reports of a start."""


class ProgressFile:
    """The latest Progress of this attempt, in memory and in a file in `run_dir`."""

    def __init__(self, run_dir: Path, initial: Progress) -> None:
        self._path = run_dir / PROGRESS_FILE
        self.latest = initial
        self._write()

    def update(self, *, is_sign_of_life: bool = True, **changes: Any) -> None:
        """Set fields of the Progress, and raise its heartbeat by one when that is a sign of life."""
        heartbeat = self.latest.heartbeat + is_sign_of_life
        self.latest = Progress.model_validate({**dict(self.latest), **changes, "heartbeat": heartbeat})
        self._write()

    def _write(self) -> None:
        write_atomically(self._path, _as_json(self.latest))


def read_progress(run_dir: Path) -> Progress | None:
    """The Progress in `run_dir`, or None in a pod without rank 0.

    The work of the pod's processes within a step raises its heartbeat too, and while none of them makes
    progress, its message begins with the standstill sentence.
    """
    written = read_if_there(run_dir / PROGRESS_FILE)
    if written is None:
        return None
    progress = Progress.model_validate_json(written)
    work = sum(position.num_work for position in read_positions(run_dir).values())
    standstill = (read_if_there(run_dir / STANDSTILL_FILE) or b"").decode()
    message = "; ".join(filter(None, (standstill, progress.message)))
    return progress.model_copy(update={"heartbeat": progress.heartbeat + work, "message": message})


def progress_json(run_dir: Path) -> bytes | None:
    """What `read_progress` finds, as it is served."""
    progress = read_progress(run_dir)
    return None if progress is None else _as_json(progress).encode()


class StartingReport:
    """Updates the supervisor's first progress while rank 0 reads. The trainer's state stays Starting: only
    bytes raise its heartbeat, by which the operator and local mode tell a slow start from one that is
    hung."""

    def __init__(self, run_dir: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Reports nothing where `run_dir` has no progress."""
        known = read_progress(run_dir)
        self._file = ProgressFile(run_dir, known) if known else None
        self._clock = clock
        self._reported_at: float | None = None
        self._num_moved = 0

    def report_bytes(self, message: str, *, num_bytes: int) -> None:
        """Report what is being read and that `num_bytes` have been read so far, unless the last report was
        just before. Only more bytes are a sign of life: rank 0 itself lives on when a volume does not
        answer."""
        now = self._clock()
        if self._file is None or (
            self._reported_at is not None and now - self._reported_at < _MIN_REPORT_INTERVAL_SECONDS
        ):
            return
        self._reported_at = now
        is_moving = num_bytes > self._num_moved
        self._num_moved = max(num_bytes, self._num_moved)
        self._file.update(is_sign_of_life=is_moving, message=message or self._file.latest.message)


def rounded_down(seconds: float) -> int:
    """Whole seconds for a sentence, the coarser the more they are, so that the operator need not write it
    into the status every second."""
    unit = 10 if seconds < 60 else 60 if seconds < 600 else 300
    return int(seconds // unit) * unit


def _as_json(progress: Progress) -> str:
    return progress.model_dump_json(by_alias=True, exclude_none=True)
