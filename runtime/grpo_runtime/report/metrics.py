"""metrics.jsonl: one line for each step of each attempt, and the reader that knows which line counts."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class MetricsRecord:
    """One finished step. `step` counts from 1, `time` is in seconds since 1970."""

    attempt: int
    step: int
    time: float
    values: Mapping[str, float]
    """By TRL's names; see `read_metrics` for which record counts where there are several of one step."""


class MetricsWriter:
    """Appends records to the metrics file in `folder`; every record is on disk before `write` returns."""

    def __init__(self, folder: Path) -> None:
        path = folder / METRICS_FILE
        is_torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        self._file = path.open("a")
        if is_torn:
            # the last writer was killed in the middle of a line: keep ours apart from it
            self._file.write("\n")

    def write(self, record: MetricsRecord) -> None:
        """Append one line."""
        # last, so that a user's own metric of such a name cannot move the record to another step
        line = {**record.values, "attempt": record.attempt, "step": record.step, "time": record.time}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[MetricsRecord]:
    """The records that count, by step: where attempts overlap, the later one wins.

    An attempt that resumed at a step also undoes what earlier attempts had logged beyond it. A line that
    was cut short by a kill is left out; so the list may have gaps only where a file was damaged.
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
    """Every record in lines of a metrics file, in their order; a line that was cut short is left out."""
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
