"""metrics.jsonl: one line for each step of each attempt, and the reader that knows which lines count."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_runtime.storage.files import sync_directory
from grpo_runtime.storage.volume_errors import volume_errors_named

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class MetricsRecord:
    """One finished step. `step` counts from 1, `time` is in seconds since 1970."""

    attempt: int
    step: int
    time: float
    values: Mapping[str, float]
    """By TRL's names. Of several records of one step `read_metrics` returns the one that counts."""


class MetricsFile:
    """Appends records to the metrics file in `folder`; every record is on disk before `write` returns.

    Raises VolumeFullError, with the name of the volume, when no space is left there.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / METRICS_FILE
        self._folder = folder
        with volume_errors_named(folder):
            is_torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
            self._file = path.open("a")
            # otherwise a power cut could remove a new file's name, and with it every record
            sync_directory(folder)
            if is_torn:
                # the last writer was killed in the middle of a line: begin a new one
                self._file.write("\n")

    def write(self, record: MetricsRecord) -> None:
        """Append one line."""
        # attempt, step and time come last, so that a user's own metric cannot replace them
        line = {**record.values, "attempt": record.attempt, "step": record.step, "time": record.time}
        with volume_errors_named(self._folder):
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self, *, has_failed: bool = False) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[MetricsRecord]:
    """The records that count, by step: where attempts overlap, those of the later attempt.

    An attempt that resumed at a step also undoes what earlier attempts had logged beyond that step. A line
    that was cut short by a kill is left out; the list has gaps only if the file was damaged.
    """
    by_attempt: dict[int, dict[int, MetricsRecord]] = {}
    for record in parse_metrics(path.read_text()):
        by_attempt.setdefault(record.attempt, {})[record.step] = record
    counting: dict[int, MetricsRecord] = {}
    for _, records in sorted(by_attempt.items()):
        first = min(records)
        counting = {step: record for step, record in counting.items() if step < first} | records
    return [counting[step] for step in sorted(counting)]


def parse_metrics(text: str) -> list[MetricsRecord]:
    """Every record in lines of a metrics file, in order; a line that was cut short is left out."""
    records = []
    for line in text.splitlines():
        try:
            found: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            continue
        records.append(
            MetricsRecord(
                attempt=found.pop("attempt"), step=found.pop("step"), time=found.pop("time"), values=found
            )
        )
    return records
