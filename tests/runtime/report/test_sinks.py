"""A tracker is a sink. A fourth one is added here, without a change to the product."""

from pathlib import Path

import pytest

from grpo_api.contract.progress import EngineCounts, Progress, TrainerState
from grpo_api.contract.run_config import JobRef
from grpo_runtime.report.reporter import SINKS, Reporter
from grpo_runtime.report.sink import OpenSink, SinkContext, StepRecord

ENGINES = EngineCounts(desired=2, known=2, current=1)


class TextSink:
    """Writes the reward of each step as a line of text."""

    def __init__(self, context: SinkContext) -> None:
        self._file = (context.output_dir / "rewards.txt").open("w")
        self._file.write(f"{context.job.name} from step {context.start_step}\n")

    def write(self, record: StepRecord) -> None:
        reward, current = record.values["reward"], record.engines.current
        self._file.write(f"{record.attempt}.{record.step} {reward} with {current} engine\n")

    def close(self, *, has_failed: bool = False) -> None:
        self._file.write("closed after an error\n" if has_failed else "closed\n")
        self._file.close()


class BrokenSink:
    """Its volume is full when it is closed."""

    def __init__(self, context: SinkContext) -> None:
        pass

    def write(self, record: StepRecord) -> None:
        pass

    def close(self, *, has_failed: bool = False) -> None:
        raise OSError("no space left")


def reporter_of(tmp_path: Path, *sinks: OpenSink) -> Reporter:
    (tmp_path / "run").mkdir()
    return Reporter(
        output_dir=tmp_path / "output",
        run_dir=tmp_path / "run",
        job=JobRef(namespace="team", name="copy", uid="uid"),
        initial=Progress(job_uid="uid", attempt=2, step=3, total_steps=5),
        sinks=(*SINKS, *sinks),
    )


def test_an_error_that_ends_the_attempt_closes_all_sinks_also_behind_one_that_cannot_be(
    tmp_path: Path,
) -> None:
    reporter_of(tmp_path, BrokenSink, TextSink).fail()
    assert (tmp_path / "output" / "rewards.txt").read_text() == "copy from step 3\nclosed after an error\n"


def test_a_sink_that_cannot_be_closed_at_the_end_leaves_none_behind_it_open_and_its_error_rises(
    tmp_path: Path,
) -> None:
    with pytest.raises(OSError, match="no space left"):
        reporter_of(tmp_path, BrokenSink, TextSink).close(TrainerState.DONE)
    assert (tmp_path / "output" / "rewards.txt").read_text() == "copy from step 3\nclosed\n"


def test_a_fourth_sink_gets_every_step_beside_the_others_and_is_closed(tmp_path: Path) -> None:
    output, run_dir = tmp_path / "output", tmp_path / "run"
    reporter = reporter_of(tmp_path, TextSink)
    for step in (4, 5):
        reporter.finished_step(
            {"reward": step / 10, "loss": 0.5, "grad_norm": 1.0, "step_time": 2.0},
            step=step,
            policy_version=f"2.{step}",
            engines=ENGINES,
        )
    reporter.close(TrainerState.DONE)
    assert (output / "rewards.txt").read_text().splitlines() == [
        "copy from step 3",
        "2.4 0.4 with 1 engine",
        "2.5 0.5 with 1 engine",
        "closed",
    ]
    assert len((output / "metrics.jsonl").read_text().splitlines()) == 2
    assert any((output / "tensorboard").iterdir())
    assert 'grpo_step{grpojob="copy"} 5.0' in (run_dir / "metrics.prom").read_text()
