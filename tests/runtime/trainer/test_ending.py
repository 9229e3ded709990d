"""What an error leaves behind on rank 0, and how long it may take."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pod_builder import run_config

from grpo_api.contract.progress import EngineCounts, Progress
from grpo_api.contract.run_config import JobRef
from grpo_runtime.engines.fleet.engine_client import EngineConflictError
from grpo_runtime.errors import SupersededError, UserError
from grpo_runtime.report.reporter import SINKS, Reporter
from grpo_runtime.report.run_file import keep_run_file
from grpo_runtime.report.sink import SinkContext, StepRecord
from grpo_runtime.trainer.ending import END_SECONDS, FINISH_SECONDS, TimeLeft, closed_after_an_error

SUPERSEDED = [
    SupersededError("attempt 2 has begun"),
    EngineConflictError("attempt 1 is over: engine a belongs to attempt 2", status=409),
]


class RunOfATracker:
    """A run that all attempts of a job share, with its status in a file."""

    def __init__(self, context: SinkContext) -> None:
        self._status = context.output_dir / "status"
        self._status.write_text("RUNNING")

    def write(self, record: StepRecord) -> None:
        pass

    def close(self, *, has_failed: bool = False) -> None:
        self._status.write_text("FAILED" if has_failed else "FINISHED")


@pytest.fixture
def reporter(tmp_path: Path) -> Reporter:
    """That of an attempt which has made a step."""
    (tmp_path / "run").mkdir()
    keep_run_file(tmp_path, run_config())
    made = Reporter(
        output_dir=tmp_path,
        run_dir=tmp_path / "run",
        job=JobRef(namespace="team", name="copy", uid="uid"),
        initial=Progress(job_uid="uid", attempt=1, step=0, total_steps=9),
        sinks=(*SINKS, RunOfATracker),
    )
    values = {"reward": 0.25, "loss": 0.5, "grad_norm": 1.5, "step_time": 2.0}
    rest = {"policy_version": "1.1", "engines": EngineCounts()}
    made.finished_step(values, step=1, **rest)  # type: ignore[arg-type]
    return made


def status_after(error: Exception, reporter: Reporter, folder: Path) -> str:
    with pytest.raises(type(error)) as risen, closed_after_an_error(reporter, output_dir=folder):
        raise error
    assert risen.value is error
    return (folder / "status").read_text()


def test_after_an_error_the_run_of_a_tracker_has_failed_and_the_page_is_there(
    reporter: Reporter, tmp_path: Path
) -> None:
    assert status_after(UserError("no such column"), reporter, tmp_path) == "FAILED"
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize("error", SUPERSEDED, ids=["checkpoints", "engines"])
def test_an_attempt_that_learns_of_a_later_one_leaves_it_the_run_of_the_tracker_and_the_page(
    error: Exception, reporter: Reporter, tmp_path: Path
) -> None:
    assert status_after(error, reporter, tmp_path) == "RUNNING"
    assert not (tmp_path / "report.html").exists()


def test_what_is_waited_for_after_an_error_has_one_time_together() -> None:
    seconds_later: Iterator[float] = iter([100.0, 112.0, 135.0, 142.0, 190.0])
    time_left = TimeLeft(clock=lambda: next(seconds_later))
    journal, checkpoint, late = (time_left.of(FINISH_SECONDS) for _ in range(3))
    assert (journal, checkpoint, late) == (30.0, 18.0, 0.0)
    page, too_late = (time_left.of(END_SECONDS) for _ in range(2))
    assert (page, too_late) == (18.0, 0.0)
