"""What the reporter writes: progress file, Prometheus text, TensorBoard and metrics.jsonl."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from power_cut import PowerCuts
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from grpo_api.contract.learning_signal import StepsWithoutSignal
from grpo_api.contract.left_out import LeftOutEnvironment
from grpo_api.contract.mismatch import MISMATCH_METRIC, STEPS_BELOW, Mismatch
from grpo_api.contract.progress import (
    AsyncProgress,
    EngineCounts,
    EngineNote,
    HungEngine,
    Progress,
    TrainerState,
)
from grpo_api.contract.run_config import JobRef
from grpo_api.judge.engines import NO_ENGINE_SECONDS
from grpo_runtime.report.metrics_file import METRICS_FILE, MetricsFile, MetricsRecord, read_metrics
from grpo_runtime.report.progress import ProgressFile, read_progress
from grpo_runtime.report.prometheus import PROMETHEUS_FILE
from grpo_runtime.report.reporter import Reporter

JOB = JobRef(namespace="team", name="copy", uid="uid")
VALUES = {"reward": 0.25, "loss": 0.5, "grad_norm": 1.5, "step_time": 2.0, "tokens_per_second": 100.0}
MakeReporter = Callable[..., Reporter]


@pytest.fixture
def reporter_of(tmp_path: Path) -> MakeReporter:
    """The reporter of an attempt that starts from `step`; the output directory is the same for all."""

    def make(*, attempt: int = 1, step: int = 0, total_steps: int = 9, **options: Any) -> Reporter:
        (tmp_path / "run").mkdir(exist_ok=True)
        initial = Progress(job_uid="uid", attempt=attempt, step=step, total_steps=total_steps)
        folders = {"output_dir": tmp_path / "output", "run_dir": tmp_path / "run"}
        return Reporter(**folders, job=JOB, initial=initial, **options)

    return make


def finish(reporter: Reporter, step: int, **changes: Any) -> None:
    engines = EngineCounts(desired=3, known=2, current=1)
    rest: dict[str, Any] = {"policy_version": f"1.{step}", "engines": engines}
    reporter.finished_step({**VALUES, **changes}, step=step, **rest)


def progress(folder: Path) -> Progress:
    found = read_progress(folder / "run")
    assert found is not None
    return found


def test_a_finished_step_is_the_newest_progress(reporter_of: MakeReporter, tmp_path: Path) -> None:
    reporter = reporter_of()
    finish(reporter, 1)
    reporter.report_checkpoint(1)
    assert progress(tmp_path).model_copy(update={"heartbeat": 0}) == Progress(
        job_uid="uid",
        attempt=1,
        state=TrainerState.TRAINING,
        step=1,
        total_steps=9,
        reward=0.25,
        policy_version="1.1",
        tokens_per_second=100.0,
        checkpoint_step=1,
        engines=EngineCounts(desired=3, known=2, current=1),
    )


def test_the_best_evaluation_is_reported_and_stays(reporter_of: MakeReporter, tmp_path: Path) -> None:
    reporter = reporter_of()
    assert progress(tmp_path).best_evaluation is None
    reporter.report_best_evaluation(1, reward=-0.5)
    finish(reporter, 2)
    assert progress(tmp_path).to_object()["bestEvaluation"] == {"step": 1, "reward": -0.5}


def test_how_long_a_save_took_is_reported_once_it_needs_more_than_the_usual_grace_period(
    reporter_of: MakeReporter, tmp_path: Path
) -> None:
    reporter = reporter_of()
    told = []
    for step, seconds in enumerate((None, 0.4, 20.0, 20.1, 3.2), start=1):
        reporter.report_checkpoint(step, seconds=seconds)
        told.append(progress(tmp_path).checkpoint_seconds)
    assert told == [None, None, None, 21, 4]
    assert "checkpointSeconds" not in Progress(job_uid="uid", attempt=1, total_steps=9).to_object()


def test_a_step_of_asynchronous_training_reports_how_far_sampling_is_ahead(
    reporter_of: MakeReporter, tmp_path: Path
) -> None:
    reporter = reporter_of()
    finish(
        reporter,
        1,
        **{"async/staleness/mean": 1.25, "async/staleness/max": 3.0},
        **{"async/queued_groups": 5.0, "async/running_groups": 12.0},
    )
    found = AsyncProgress(mean_staleness=1.25, max_staleness=3, num_queued=5, num_running=12)
    assert progress(tmp_path).asynchronous == found
    assert progress(tmp_path).to_object()["async"]["numQueued"] == 5


def test_a_step_without_a_reward_does_not_keep_the_one_before(
    reporter_of: MakeReporter, tmp_path: Path
) -> None:
    reporter = reporter_of()
    finish(reporter, 1)
    reporter.finished_step(
        {name: value for name, value in VALUES.items() if name != "reward"},
        step=2,
        policy_version="1.2",
        engines=EngineCounts(),
    )
    assert progress(tmp_path).reward is None


def test_a_trainer_waits_for_engines_only_while_none_is_current(
    reporter_of: MakeReporter, tmp_path: Path
) -> None:
    reporter = reporter_of()
    reporter.report_waiting(EngineCounts(desired=3, known=2, current=0))
    waiting = progress(tmp_path)
    assert waiting.state is TrainerState.WAITING_FOR_ROLLOUT
    assert waiting.message.endswith(": 2 of 3 engines have answered")
    reporter.report_waiting(EngineCounts(desired=3, known=2, current=1))
    training = progress(tmp_path)
    assert (training.state, training.message) == (TrainerState.TRAINING, "")
    assert training.heartbeat > waiting.heartbeat


def test_more_engines_than_the_attempt_began_with_are_not_counted_as_a_part_of_those(
    reporter_of: MakeReporter, tmp_path: Path
) -> None:
    reporter_of().report_waiting(EngineCounts(desired=2, known=3, current=0))
    assert progress(tmp_path).message.endswith(": 3 engines have answered, and the attempt began with 2")


def test_a_weight_sync_is_no_wait_for_engines_until_it_has_lasted(
    reporter_of: MakeReporter, tmp_path: Path
) -> None:
    now = 100.0
    reporter = reporter_of(clock=lambda: now)
    none, all_of_them = EngineCounts(desired=3, known=3), EngineCounts(desired=3, known=3, current=3)
    said = []
    for engines, seconds in [(all_of_them, 0), (none, 500), (none, 9), (none, 1), (none, 49), (none, 1)]:
        now += seconds
        reporter.report_waiting(engines)
        found = progress(tmp_path)
        said.append((found.state.value, bool(found.message)))
    assert said == [
        *[("Training", False)] * 3,
        *[("Training", True)] * 2,
        ("WaitingForRollout", True),
    ]
    reporter.report_waiting(all_of_them)
    now += 500
    finish(reporter, 1)
    now += 500
    reporter.report_waiting(none)
    assert progress(tmp_path).state is TrainerState.TRAINING


def test_an_engine_without_weights_is_in_every_report_until_it_gets_them(
    reporter_of: MakeReporter, tmp_path: Path
) -> None:
    reporter, note = reporter_of(), "engine b has failed 2 weight syncs"
    b = EngineNote(name="b", text=note)
    none, one = EngineCounts(desired=2, known=2, current=0), EngineCounts(desired=2, known=2, current=1)

    def said() -> tuple[str, str]:
        found = progress(tmp_path)
        assert found.engines.notes_on("b") == (note if note in found.message else "")
        return found.state, found.message

    reporter.report_waiting(none, without_weights=[b])
    waits = "no rollout engine has the newest weights: 2 of 2 engines have answered"
    assert said() == ("WaitingForRollout", f"{note}; {waits}")
    reporter.report_waiting(one, without_weights=[b])
    assert said() == ("Training", note)
    finish(reporter, 1)
    assert said() == ("Training", note)
    reporter.report_bytes("a checkpoint is being written", num_bytes=8)
    assert said() == ("Training", f"{note}; a checkpoint is being written")
    reporter.report_waiting(one)
    assert said() == ("Training", "")
    finish(reporter, 2)
    assert said() == ("Training", "")


def test_engines_that_stand_still_are_named_and_otherwise_the_field_is_not_there(
    reporter_of: MakeReporter, tmp_path: Path
) -> None:
    """An operator of an earlier release cannot read a report with a field that it does not know."""
    reporter = reporter_of()
    hung = HungEngine(name="pod-1", instance="a", since=datetime(2026, 11, 23, tzinfo=UTC), why="it hangs")
    reporter.report_waiting(EngineCounts(desired=2, known=2, current=1, hung=(hung,)))
    assert progress(tmp_path).engines.hung == (hung,)
    reporter.finished_step(
        VALUES,
        step=1,
        policy_version="1.1",
        engines=EngineCounts(desired=2, known=2, current=1, hung=(hung,)),
    )
    assert "grpo_engines_hung{" in (tmp_path / "run" / PROMETHEUS_FILE).read_text()
    reporter.report_waiting(EngineCounts(desired=2, known=2, current=2))
    written = json.loads((tmp_path / "run" / "progress.json").read_text())
    assert written["engines"] == {"desired": 2, "known": 2, "current": 2}


def test_the_heartbeat_goes_on_from_that_of_the_supervisor(reporter_of: MakeReporter, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    file = ProgressFile(tmp_path / "run", Progress(job_uid="uid", attempt=1, total_steps=9))
    for _ in range(5):
        file.update()
    reporter_of()
    assert progress(tmp_path).heartbeat == 6


def test_prometheus_has_every_number_of_the_newest_step(reporter_of: MakeReporter, tmp_path: Path) -> None:
    reporter = reporter_of(attempt=2)
    finish(reporter, 1)
    finish(reporter, 2, reward=0.75)
    lines = (tmp_path / "run" / "metrics.prom").read_text().splitlines()
    labels = '{grpojob="copy"}'
    for name, value in {
        "reward": 0.75, "loss": 0.5, "step": 2.0, "total_steps": 9.0, "attempt": 2.0,
        "engines_known": 2.0, "engines_current": 1.0,
    }.items():  # fmt: skip
        assert f"grpo_{name}{labels} {value}" in lines


def test_tensorboard_shows_what_counts_of_two_attempts(reporter_of: MakeReporter, tmp_path: Path) -> None:
    first = reporter_of()
    for step in range(1, 6):
        finish(first, step, reward=step / 10)
    first.close(TrainerState.STOPPING)
    # from the checkpoint of step 3: the steps 4 and 5 are done again
    second = reporter_of(attempt=2, step=3)
    finish(second, 4, reward=0.9)
    second.close(TrainerState.STOPPING)
    shown = EventAccumulator(str(tmp_path / "output" / "tensorboard"), purge_orphaned_data=True).Reload()
    rewards = {event.step: pytest.approx(event.value) for event in shown.Scalars("reward")}
    assert rewards == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.9}
    counting = read_metrics(tmp_path / "output" / METRICS_FILE)
    assert {record.step: record.values["reward"] for record in counting} == rewards


def test_no_power_cut_takes_a_step_away_that_was_written(tmp_path: Path) -> None:
    root, states = tmp_path / "claim", tmp_path / "states"
    root.mkdir()
    states.mkdir()
    cuts = PowerCuts(root, at_each=lambda _: None)
    with cuts.watched():
        writer = MetricsFile(root)
        for step in (1, 2):
            writer.write(MetricsRecord(attempt=1, step=step, time=0.0, values={"reward": 0.5}))
            for state in cuts.states(states):
                assert len(read_metrics(state / METRICS_FILE)) == step
        writer.close()


def test_a_mismatch_is_in_the_progress_until_some_steps_are_below_the_bound(
    reporter_of: MakeReporter, tmp_path: Path
) -> None:
    reporter = reporter_of()
    finish(reporter, 1, **{MISMATCH_METRIC: 0.04})
    assert "mismatch" not in (tmp_path / "run" / "progress.json").read_text()
    finish(reporter, 2, **{MISMATCH_METRIC: 2.5})
    assert progress(tmp_path).mismatch == Mismatch(step=2, nats=2.5)
    for step in range(3, 3 + STEPS_BELOW):
        assert progress(tmp_path).mismatch is not None
        finish(reporter, step, **{MISMATCH_METRIC: 0.04})
    assert progress(tmp_path).mismatch is None


def test_no_mismatch_is_reported_where_logprobs_are_meant_to_differ(
    reporter_of: MakeReporter, tmp_path: Path
) -> None:
    finish(reporter_of(has_mismatch_bound=False), 1, **{MISMATCH_METRIC: 2.5})
    assert progress(tmp_path).mismatch is None


def test_steps_that_teach_nothing_are_in_the_progress_and_told_once_in_the_log(
    reporter_of: MakeReporter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = reporter_of(reward_names=["accuracy"], total_steps=1000)
    told = []
    for step in (*range(1, 13), *range(14, 25)):  # step 13 teaches something
        num = step if step < 13 else step - 13
        finish(reporter, step, **{"steps_without_signal/no_reward": float(num)})
        if step == 12:
            finish(reporter, 13)
            assert progress(tmp_path).steps_without_signal is None
        else:
            found = progress(tmp_path).steps_without_signal
            assert found == StepsWithoutSignal(step=step, no_reward=num, rewards="accuracy")
        told.append(sum(message.startswith("NoLearningSignal: ") for message in caplog.messages))
    assert told == [0] * 9 + [1] * 3 + [1] * 9 + [2] * 2


def test_an_environment_that_fails_is_in_the_progress_and_told_once_in_the_log(
    reporter_of: MakeReporter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reporter, told, known = reporter_of(), [], []
    for step, num in enumerate((8, 16, 24, 0, 16), start=1):
        finish(reporter, step, **({"env/go/left_out_in_a_row": float(num)} if num else {}))
        known.append(progress(tmp_path).left_out)
        told.append(sum(message.startswith("EnvironmentFailing: of env") for message in caplog.messages))
    assert known == [
        (LeftOutEnvironment(name="go", num_groups=num),) if num else None for num in (0, 16, 24, 0, 16)
    ]
    assert told == [0, 1, 1, 1, 2]


def test_a_short_run_that_teaches_nothing_is_told_at_its_end(
    reporter_of: MakeReporter, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = reporter_of(reward_names=["accuracy"], total_steps=3)
    for step in (1, 2, 3):
        assert not caplog.messages or "NoLearningSignal" not in caplog.text
        finish(reporter, step, **{"steps_without_signal/equal_rewards": float(step)})
    (told,) = [message for message in caplog.messages if message.startswith("NoLearningSignal")]
    assert "from accuracy in steps 1 to 3: no two completions" in told


def test_bytes_that_move_are_a_sign_of_life_and_a_volume_that_hangs_is_none(
    reporter_of: MakeReporter, tmp_path: Path
) -> None:
    reporter = reporter_of()
    reporter.report_bytes("a checkpoint is being written", num_bytes=8)
    before = progress(tmp_path)
    reporter.report_bytes("a checkpoint is being written", num_bytes=8)
    assert progress(tmp_path).heartbeat == before.heartbeat
    reporter.report_bytes("a checkpoint is being written", num_bytes=9)
    assert progress(tmp_path).heartbeat == before.heartbeat + 1
    assert before.message == "a checkpoint is being written"


def test_a_step_that_was_finished_ends_the_time_without_an_engine(
    reporter_of: MakeReporter, tmp_path: Path
) -> None:
    now = 0.0
    reporter, engines = reporter_of(clock=lambda: now), EngineCounts(desired=3, known=0, current=0)
    reporter.report_waiting(engines)
    finish(reporter, 1)
    now += NO_ENGINE_SECONDS
    reporter.report_waiting(engines)
    assert progress(tmp_path).state is TrainerState.TRAINING


def test_a_step_that_is_replayed_waits_for_no_engine(reporter_of: MakeReporter, tmp_path: Path) -> None:
    now = 0.0
    reporter, engines = reporter_of(clock=lambda: now), EngineCounts(desired=3, known=0, current=0)
    reporter.begins_round(needs_engines=False)
    reporter.replaying(8, step=1)
    reporter.report_waiting(engines)
    assert progress(tmp_path).state is TrainerState.TRAINING
    assert progress(tmp_path).message == ""
    finish(reporter, 1)
    reporter.report_waiting(engines)
    now += NO_ENGINE_SECONDS
    reporter.report_waiting(engines)
    assert progress(tmp_path).state is TrainerState.WAITING_FOR_ROLLOUT
