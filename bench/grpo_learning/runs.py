"""Trains the job of a case with `grpo-runtime run`, which has a real vLLM engine, and reads its rewards."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from grpo_bench.errors import BenchError
from grpo_learning.cases import TRUTH, Case
from grpo_learning.gates import Outcome, outcome_of
from grpo_runtime.report.metrics import METRICS_FILE, read_metrics

_BENCH = Path(__file__).parents[1]
_LOG_CHARACTERS = 4000


def train(case: Case, *, seed: int) -> Outcome:
    """One run of a case, in a folder that is removed afterwards. Raises BenchError when the job fails."""
    with TemporaryDirectory(prefix="grpo-bench-") as place:
        folder = Path(place)
        (folder / "job.yaml").write_text(yaml.safe_dump(case.job(seed)))
        ended = subprocess.run(
            [sys.executable, "-m", "grpo_runtime.cli", "run", "job.yaml", "--output", "run"],
            cwd=folder,
            # for the rewards of the controls
            env=os.environ | {"PYTHONPATH": str(_BENCH)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise BenchError(f"{case.name}, seed {seed}: the job failed\n{ended.stdout[-_LOG_CHARACTERS:]}")
        records = read_metrics(folder / "run" / METRICS_FILE)
        return outcome_of([record.values[f"rewards/{TRUTH}/mean"] for record in records], window=case.window)
