"""The progress file: rank 0 writes it, the supervisor serves it, the operator folds it into status."""

from pathlib import Path
from typing import Any

from grpo_api.contract.progress import Progress
from grpo_runtime.storage.files import write_atomically

PROGRESS_FILE = "progress.json"


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
        # without what is not there: an older operator knows no field that is newer
        write_atomically(self._path, self.latest.model_dump_json(by_alias=True, exclude_none=True))


def read_progress(run_dir: Path) -> Progress | None:
    """The Progress in `run_dir`, or None in a pod without rank 0."""
    path = run_dir / PROGRESS_FILE
    return Progress.model_validate_json(path.read_text()) if path.exists() else None
