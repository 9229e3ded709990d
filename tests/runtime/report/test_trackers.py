"""Services that get every step, and a thread that keeps them from holding training up."""

import json
import logging
import threading
from pathlib import Path

import pytest
from kept_samples import ENGINES, sample
from pod_builder import run_config

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import TrackerName, TrackerSpec
from grpo_runtime.export.credentials import Credentials
from grpo_runtime.report.sink import SinkContext, StepRecord
from grpo_runtime.report.trackers import delivery, registry
from grpo_runtime.report.trackers.delivery import Delivery
from grpo_runtime.report.trackers.interface import TrackedRun
from grpo_runtime.report.trackers.registry import TRACKERS

KEY = "0123456789abcdef0123456789abcdef01234567"


def record(step: int, *, has_samples: bool = False) -> StepRecord:
    samples = (sample(1.0),) if has_samples else ()
    return StepRecord(
        attempt=1, step=step, time=1e9 + step, values={"reward": step / 10}, engines=ENGINES, samples=samples
    )


class FakeTracker:
    """Takes steps into `steps`; while `is_away` it raises. `asked` is set when it was asked for anything."""

    def __init__(self) -> None:
        self.is_away = False
        self.is_closed = self.has_failed = False
        self.steps: list[int] = []
        self.asked = threading.Event()
        self.has_two_steps = threading.Event()

    def open(self) -> "FakeTracker":
        self.asked.set()
        if self.is_away:
            raise ConnectionError("nobody answers")
        return self

    def write(self, record: StepRecord) -> None:
        self.open()
        self.steps.append(record.step)
        if len(self.steps) == 2:
            self.has_two_steps.set()

    def close(self, *, has_failed: bool) -> None:
        self.is_closed, self.has_failed = True, has_failed


def test_every_step_arrives_in_order_and_the_run_is_ended() -> None:
    tracker = FakeTracker()
    sink = Delivery(tracker.open, name="fake")
    for step in (1, 2, 3):
        sink.write(record(step))
    sink.close()
    assert (tracker.steps, tracker.is_closed) == ([1, 2, 3], True)


@pytest.mark.parametrize("has_failed", [True, False])
def test_a_run_that_an_error_ends_is_no_done_one_and_has_its_last_steps(has_failed: bool) -> None:
    tracker = FakeTracker()
    sink = Delivery(tracker.open, name="fake")
    sink.write(record(1))
    sink.close(has_failed=has_failed)
    assert (tracker.steps, tracker.is_closed, tracker.has_failed) == ([1], True, has_failed)


def test_a_service_that_comes_back_gets_every_step_once(caplog: pytest.LogCaptureFixture) -> None:
    tracker = FakeTracker()
    tracker.is_away = True
    sink = Delivery(tracker.open, name="fake", retry_seconds=0.01)
    sink.write(record(1))
    sink.write(record(2))
    assert tracker.asked.wait(10)
    tracker.is_away = False
    assert tracker.has_two_steps.wait(10)
    sink.close()
    assert tracker.steps == [1, 2]
    assert "does not take the run, next try in 0 s: nobody answers" in caplog.text


def test_a_service_that_stays_away_costs_nothing_but_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    tracker = FakeTracker()
    tracker.is_away = True
    sink = Delivery(tracker.open, name="fake", retry_seconds=3600)
    sink.write(record(1))
    assert tracker.asked.wait(10)
    with caplog.at_level(logging.WARNING):
        sink.close()
    assert "fake did not get 1 steps; metrics.jsonl has all" in caplog.text


def test_a_service_that_hangs_does_not_hold_the_end_up(caplog: pytest.LogCaptureFixture) -> None:
    released = threading.Event()

    class Hanging(FakeTracker):
        def write(self, record: StepRecord) -> None:
            self.asked.set()
            released.wait()

    tracker = Hanging()
    sink = Delivery(tracker.open, name="fake", close_seconds=0.05)
    sink.write(record(1))
    sink.close()
    released.set()
    assert "fake does not answer" in caplog.text


def test_the_oldest_steps_are_dropped_when_too_many_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "MAX_WAITING", 2)
    tracker = FakeTracker()
    tracker.is_away = True
    sink = Delivery(tracker.open, name="fake", retry_seconds=3600)
    for step in range(1, 6):
        sink.write(record(step))
    sink.close()
    assert "fake did not get 5 steps" in caplog.text


def tracked(
    tmp_path: Path, name: TrackerName, *, url: str | None = None, secret: dict[str, str]
) -> TrackedRun:
    folder = tmp_path / "secret"
    folder.mkdir(exist_ok=True)
    for key, value in secret.items():
        (folder / key).write_text(value)
    (tmp_path / "output").mkdir(exist_ok=True)
    run: RunConfig = run_config()
    return TrackedRun(
        # the pattern of the field is for addresses of servers
        spec=TrackerSpec.model_construct(name=name, url=url, project=None, secret="tracker"),
        run_config=run,
        credentials=Credentials("tracker", folder),
        context=SinkContext(
            job=run.job, output_dir=tmp_path / "output", run_dir=tmp_path / "run", start_step=0
        ),
    )


def test_wandb_gets_metrics_and_completions_offline_and_no_file_has_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for variable in ("HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    run = tracked(tmp_path, TrackerName.WANDB, secret={"apiKey": KEY})
    tracker = TRACKERS[TrackerName.WANDB]()(run)
    tracker.write(record(1))
    tracker.write(record(2, has_samples=True))
    tracker.close(has_failed=True)
    [stream] = (tmp_path / "output" / "wandb").glob(f"offline-run-*/run-{run.run_config.job.uid}.wandb")
    content = stream.read_bytes()
    missing = [name for name in (b"reward", b"promptsPerStep", b"char_accuracy") if name not in content]
    assert not missing, (missing, len(content))
    [table] = (tmp_path / "output" / "wandb").glob("offline-run-*/files/media/table/*.table.json")
    assert json.loads(table.read_text())["data"][0][1] == "<s>colour 0?"
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "secret"]
    assert files and not [path for path in files if KEY.encode() in path.read_bytes()]


def test_mlflow_gets_metrics_configuration_and_completions_and_a_later_attempt_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    store = (tmp_path / "mlflow").as_uri()
    run = tracked(tmp_path, TrackerName.MLFLOW, url=store, secret={})
    open_tracker = TRACKERS[TrackerName.MLFLOW]()
    client = MlflowClient(tracking_uri=store)
    ends = []
    for step in (1, 2):
        tracker = open_tracker(run)
        tracker.write(record(step, has_samples=step == 2))
        tracker.close(has_failed=step == 1)
        experiment = client.get_experiment_by_name(run.run_config.job.namespace)
        assert experiment is not None
        [found] = client.search_runs([experiment.experiment_id])
        ends.append(found.info.status)
    history = client.get_metric_history(found.info.run_id, "reward")
    assert [(metric.step, metric.value) for metric in history] == [(1, 0.1), (2, 0.2)]
    assert found.info.run_name == run.run_config.job.name
    assert ends == ["FAILED", "FINISHED"]
    assert found.data.params["algorithm.promptsPerStep"] == str(run.run_config.algorithm.prompts_per_step)


def test_every_name_of_the_spec_has_a_tracker() -> None:
    assert set(registry.TRACKERS) == set(TrackerName)
