"""Services that get every step, and a thread that keeps them from holding training up."""

import json
import logging
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import requests
from kept_samples import ENGINES, sample
from pod_builder import run_config

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import TrackerName, TrackerSpec
from grpo_runtime.export.access import UploadCredentials
from grpo_runtime.report.sink import SinkContext, StepRecord
from grpo_runtime.report.trackers import delivery, registry
from grpo_runtime.report.trackers.delivery import Delivery
from grpo_runtime.report.trackers.interface import StepRefusedError, TrackedRun
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


def test_a_service_that_was_away_for_long_is_asked_again_as_soon_as_at_first_when_it_goes_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tracker, failures = FakeTracker(), {1: 3, 2: 1}

    class Unsteady(FakeTracker):
        def write(self, record: StepRecord) -> None:
            if failures[record.step]:
                failures[record.step] -= 1
                raise ConnectionError("nobody answers")
            tracker.write(record)

    sink = Delivery(Unsteady().open, name="fake", retry_seconds=0.05)
    sink.write(record(1))
    sink.write(record(2))
    assert tracker.has_two_steps.wait(10)
    sink.close()
    pauses = [entry.args[1] for entry in caplog.records if isinstance(entry.args, tuple)]
    assert pauses == [0.05, 0.1, 0.2, 0.05]


@pytest.mark.parametrize("error", [ValueError("what is this"), TypeError("what is this")])
def test_a_step_that_the_service_does_not_take_does_not_keep_the_later_ones(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Choosy(FakeTracker):
        def write(self, record: StepRecord) -> None:
            if record.step in (1, 3):
                raise error
            super().write(record)

    tracker = Choosy()
    sink = Delivery(tracker.open, name="fake", retry_seconds=3600)
    for step in (1, 2, 3, 4):
        sink.write(record(step))
    assert tracker.has_two_steps.wait(10)
    sink.close()
    assert (tracker.steps, tracker.is_closed) == ([2, 4], True)
    assert caplog.text.count("fake does not take step 1 and continues without it: what is this") == 1
    assert "fake did not get 2 steps; metrics.jsonl has all" in caplog.text


def test_an_answer_that_is_no_json_is_an_outage_and_loses_no_step() -> None:
    """requests raises it as a ValueError that is an OSError too."""
    tracker = FakeTracker()
    failures = [requests.exceptions.JSONDecodeError("no JSON", "<html>", 0)]

    class BehindAProxy(FakeTracker):
        def write(self, record: StepRecord) -> None:
            if failures:
                raise failures.pop()
            tracker.write(record)

    sink = Delivery(BehindAProxy().open, name="fake", retry_seconds=0.01)
    sink.write(record(1))
    sink.write(record(2))
    assert tracker.has_two_steps.wait(10)
    sink.close()
    assert tracker.steps == [1, 2]


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
        credentials=UploadCredentials("tracker", folder),
        context=SinkContext(
            job=run.job,
            output_dir=tmp_path / "output",
            run_dir=tmp_path / "run",
            start_step=0,
            total_steps=run.total_steps,
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


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("pass@1", "pass_1"),
        ("own/größe [m]", "own/größe _m_"),
        ("/a//b/../c/", "a/c"),
        ("..", "_"),
        ("", "_"),
        ("long" * 100, ("long" * 100)[:250]),
    ],
)
def test_mlflow_gets_a_metric_under_a_name_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, there: str
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    store = (tmp_path / "mlflow").as_uri()
    run = tracked(tmp_path, TrackerName.MLFLOW, url=store, secret={})
    tracker = TRACKERS[TrackerName.MLFLOW]()(run)
    tracker.write(replace(record(1), values={name: 0.5, "reward": 1.0}))
    client = MlflowClient(tracking_uri=store)
    [experiment] = client.search_experiments(filter_string=f"name = '{run.run_config.job.namespace}'")
    [found] = client.search_runs([experiment.experiment_id])
    assert {key: value for key, value in found.data.metrics.items() if key != "attempt"} == {
        there: 0.5,
        "reward": 1.0,
    }


def test_mlflow_keeps_the_name_of_a_template_argument_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    store = (tmp_path / "mlflow").as_uri()
    run = tracked(tmp_path, TrackerName.MLFLOW, url=store, secret={})
    arguments = {"chat_template_arguments": {"own@name": 7}}
    config = run.run_config.model_copy(
        update={"sampling": run.run_config.sampling.model_copy(update=arguments)}
    )
    TRACKERS[TrackerName.MLFLOW]()(replace(run, run_config=config))
    client = MlflowClient(tracking_uri=store)
    [experiment] = client.search_experiments(filter_string=f"name = '{config.job.namespace}'")
    [found] = client.search_runs([experiment.experiment_id])
    assert found.data.params["sampling.chatTemplateArguments.own_name"] == "7"


class MlflowServer(BaseHTTPRequestHandler):
    """Opens a run for anybody, and gives `metrics` and `files`, a status and its error code, to each step."""

    metrics: ClassVar[tuple[int, str]]
    files: ClassVar[tuple[int, str]]
    RUN: ClassVar[dict[str, Any]] = {
        "run": {"info": {"run_id": "a", "artifact_uri": "mlflow-artifacts:/1/a"}, "data": {}}
    }
    OPENING: ClassVar[dict[str, Any]] = {
        "experiments/get-by-name": {"experiment": {"experiment_id": "1"}},
        "runs/create": RUN,
        "runs/get": RUN,
    }

    def do_GET(self) -> None:
        endpoint = self.path.partition("?")[0].removeprefix("/api/2.0/mlflow/")
        said = self.OPENING.get(endpoint, {})
        content = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        if "metrics" in content:
            self.answer(*self.metrics)
        elif self.command == "PUT":
            self.answer(*self.files)
        else:
            self.answer(200, **said)

    def answer(self, status: int, code: str = "", **said: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps({"error_code": code, "message": "no"} if code else said).encode())

    do_POST = do_PUT = do_GET


@pytest.mark.parametrize(
    ("metrics", "files", "is_refused"),
    [
        ((400, "INVALID_PARAMETER_VALUE"), (200, ""), True),
        ((503, "TEMPORARILY_UNAVAILABLE"), (200, ""), False),
        ((403, "PERMISSION_DENIED"), (200, ""), False),
        ((500, "INTERNAL_ERROR"), (200, ""), False),
        ((200, ""), (413, "TOO_LARGE"), True),
        ((200, ""), (503, "TEMPORARILY_UNAVAILABLE"), False),
    ],
)
def test_a_step_that_mlflow_refuses_is_told_from_a_server_that_is_away(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    metrics: tuple[int, str],
    files: tuple[int, str],
    is_refused: bool,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    from mlflow.exceptions import MlflowException
    from requests import HTTPError

    MlflowServer.metrics, MlflowServer.files = metrics, files
    with ThreadingHTTPServer(("127.0.0.1", 0), MlflowServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        tracker = TRACKERS[TrackerName.MLFLOW]()(tracked(tmp_path, TrackerName.MLFLOW, url=url, secret={}))
        with pytest.raises(StepRefusedError if is_refused else (MlflowException, HTTPError)):
            tracker.write(record(1, has_samples=True))
        server.shutdown()


def test_every_name_of_the_spec_has_a_tracker() -> None:
    assert set(registry.TRACKERS) == set(TrackerName)
