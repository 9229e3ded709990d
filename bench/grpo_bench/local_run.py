"""A job that `grpo-runtime run` trains, with a real vLLM engine, and what it reports."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from grpo_bench.errors import BenchError
from grpo_runtime.report.metrics_file import METRICS_FILE, MetricsRecord, read_metrics

_BENCH = Path(__file__).parents[1]
_LOG_CHARACTERS = 4000


@contextmanager
def trained(
    job: dict[str, Any], *, what: str, program: str = "grpo_runtime.cli"
) -> Iterator[tuple[list[MetricsRecord], Path]]:
    """The records of every step of a run, and the folder of its output, which is removed afterwards.
    `program` is a module that takes the arguments of `grpo-runtime`. Raises BenchError naming `what` when the
    job fails."""
    with TemporaryDirectory(prefix="grpo-bench-") as place:
        folder = Path(place)
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
        ended = subprocess.run(
            [sys.executable, "-m", program, "run", "job.yaml", "--output", "run"],
            cwd=folder,
            # for functions of bench/ that score
            env=os.environ | {"PYTHONPATH": str(_BENCH)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise BenchError(f"{what}: the job failed\n{ended.stdout[-_LOG_CHARACTERS:]}")
        yield read_metrics(folder / "run" / METRICS_FILE), folder / "run"
