"""Runs one side as a process of its own, and reads the steps it logged."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_bench.errors import BenchError
from grpo_runtime.report.metrics_file import METRICS_FILE, read_metrics
from grpo_trl.batches import our_job, trl_arguments, write_prompts
from grpo_trl.cases import Case
from grpo_trl.model_folder import write_model
from grpo_trl.steps import Logged, Step, measured_steps

TRL = "TRL"
_BENCH = Path(__file__).parents[1]
_LOG_CHARACTERS = 4000
_STOP_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Both sides, with the files of one case in `folder`. A run that has not ended at `deadline` (monotonic)
    is an error."""

    case: Case
    folder: Path
    trl_python: Path
    deadline: float

    def prepare(self) -> int:
        """Write what both read; returns the number of parameters of the model."""
        write_prompts(self.case, self._dataset)
        return write_model(self.case, self._model)

    def trl(self, number: int) -> list[Step]:
        """Train with TRL. Raises BenchError, as `measured_steps` does and when the process fails."""
        output = self.folder / f"trl-{number}"
        output.mkdir()
        log, settings = output / "steps.jsonl", output / "settings.json"
        num_threads = len(os.sched_getaffinity(0))
        given: Mapping[str, Any] = {
            "model": str(self._model),
            "dataset": str(self._dataset),
            "log": str(log),
            "output": str(output / "checkpoints"),
            "num_threads": num_threads,
            "arguments": trl_arguments(self.case),
        }
        settings.write_text(json.dumps(given))
        self._run(
            (str(self.trl_python), "-m", "grpo_trl.trl_side", str(settings)),
            output,
            OMP_NUM_THREADS=str(num_threads),
        )
        logged = [Logged(**json.loads(line)) for line in log.read_text().splitlines()]
        return measured_steps(logged, case=self.case, side=TRL)

    def ours(self, number: int, *, processes: int | None) -> list[Step]:
        """Train as a user does. Raises BenchError, as `trl` does."""
        output = self.folder / f"ours-{processes}-{number}"
        output.mkdir()
        job = our_job(self.case, model=self._model, dataset=self._dataset, processes=processes)
        # JSON is YAML
        (output / "job.yaml").write_text(json.dumps(job))
        self._run(
            (
                sys.executable,
                "-m",
                "grpo_runtime.cli",
                "run",
                str(output / "job.yaml"),
                "--output",
                str(output),
            ),
            output,
        )
        logged = [Logged(record.time, record.values) for record in read_metrics(output / METRICS_FILE)]
        return measured_steps(logged, case=self.case, side="ours")

    @property
    def _model(self) -> Path:
        return self.folder / "model"

    @property
    def _dataset(self) -> Path:
        return self.folder / "prompts.jsonl"

    def _run(self, command: Sequence[str], output: Path, **variables: str) -> None:
        log = output / "log"
        with log.open("w") as file, _ended(command, file, _environment() | variables) as process:
            try:
                code = process.wait(timeout=max(0.0, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise BenchError(
                    f"{' '.join(command[:4])} does not end in time: give more --minutes, or fewer --cases"
                ) from None
        if code != 0:
            raise BenchError(
                f"{' '.join(command[:4])} ended with {code}\n{log.read_text()[-_LOG_CHARACTERS:]}"
            )


@contextmanager
def _ended(
    command: Sequence[str], log: Any, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has ended when the block ends, also in the middle: what it started ends with it."""
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment() -> dict[str, str]:
    """The shell's, without a number of threads, which is each side's own, and with this package."""
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return variables | {"PYTHONPATH": str(_BENCH), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
