"""An MLflow tracking server."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from grpo_runtime.report.sample import TRACKED
from grpo_runtime.report.sink import StepRecord
from grpo_runtime.report.trackers.interface import TrackedRun

_JOB_UID = "grpo.dev/job-uid"
_MAX_PARAMS = 100
"""Of one request, as the server's limit says; the longest value that it takes is _MAX_VALUE."""
_MAX_VALUE = 6000
_VARIABLES = {
    "token": "MLFLOW_TRACKING_TOKEN",
    "username": "MLFLOW_TRACKING_USERNAME",
    "password": "MLFLOW_TRACKING_PASSWORD",
}
"""Keys of the Secret, and where MLflow looks for them."""


class MlflowTracker:
    """A run of MLflow that is found again by the uid of the job."""

    def __init__(self, run: TrackedRun) -> None:
        for key, variable in _VARIABLES.items():
            value = run.credentials.read(key, is_optional=True)
            if value is not None:
                os.environ[variable] = value
        self._client = MlflowClient(tracking_uri=run.spec.url)
        experiment = self._client.get_experiment_by_name(run.project)
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(run.project)
        )
        job = run.run_config.job
        known = self._client.search_runs([experiment_id], filter_string=f"tags.`{_JOB_UID}` = '{job.uid}'")
        if known:
            self._run_id = known[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            return
        created = self._client.create_run(experiment_id, run_name=job.name, tags={_JOB_UID: job.uid})
        self._run_id = created.info.run_id
        params = [Param(name, value[:_MAX_VALUE]) for name, value in _flat(run.run_config.to_object())]
        for first in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[first : first + _MAX_PARAMS])

    def write(self, record: StepRecord) -> None:
        """Log the metrics, and the completions of a step that keeps them as a table among the artifacts."""
        milliseconds = int(record.time * 1000)
        values = {**record.values, "attempt": float(record.attempt)}
        metrics = [Metric(name, value, milliseconds, record.step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)
        if record.samples:
            table = {column: [getattr(sample, column) for sample in record.samples] for column in TRACKED}
            self._client.log_table(self._run_id, table, f"completions/step-{record.step:06d}.json")

    def close(self, *, has_failed: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._run_id, "FAILED" if has_failed else "FINISHED")


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every number and text of the configuration by its path, such as `algorithm.groupSize`."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}".removeprefix("."))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _flat(part, f"{name}.{index}")
    elif value is not None:
        yield name, str(value)
