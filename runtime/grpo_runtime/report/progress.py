"""The progress of an attempt: rank 0 writes it, the supervisor serves it with what it sees itself, and the
operator folds it into status."""

from pathlib import Path
from typing import Any

from grpo_api.contract.progress import Progress
from grpo_runtime.report.position import read_positions
from grpo_runtime.storage.files import read_if_there, write_atomically

PROGRESS_FILE = "progress.json"
STANDSTILL_FILE = "standstill"
"""What the supervisor says while no training process of the pod goes on, as a sentence."""


class ProgressFile:
    """The latest Progress of this attempt, in memory and in a file in `run_dir`. Needs no torch."""

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

    The work of the pod's processes within a step raises its heartbeat too, and while none of them goes on,
    its message begins with that.
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


def _as_json(progress: Progress) -> str:
    return progress.model_dump_json(by_alias=True, exclude_none=True)
