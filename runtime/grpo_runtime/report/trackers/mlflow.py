"""An MLflow tracking server."""

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from requests import HTTPError

from grpo_runtime.report.samples import TRACKED, made
from grpo_runtime.report.sink import StepRecord
from grpo_runtime.report.trackers.interface import StepRefusedError, TrackedRun

_JOB_UID = "grpo.dev/job-uid"
_MAX_PARAMS = 100
"""Most parameters of one request, the server's limit."""
_MAX_VALUE = 6000
"""The longest value that the server takes, in characters."""
_MAX_NAME = 250
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST"})
"""Error codes about what was sent; an unreachable server has others."""
_REFUSED_FILES = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE})
"""The same of the artifact store, or of a proxy that bounds the size of what is sent."""
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
        flat = {_allowed_name(name): value for name, value in _flat(run.run_config.to_object())}
        params = [Param(name, value[:_MAX_VALUE]) for name, value in flat.items()]
        for first in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[first : first + _MAX_PARAMS])

    def write(self, record: StepRecord) -> None:
        """Log the metrics, and the completions of a step that keeps them as a table among the artifacts.

        Raises StepRefusedError when the server does not take what is in the step.
        """
        milliseconds = int(record.time * 1000)
        values = {**record.values, "attempt": float(record.attempt)}
        metrics = [
            Metric(_allowed_name(name), value, milliseconds, record.step) for name, value in values.items()
        ]
        try:
            self._client.log_batch(self._run_id, metrics=metrics)
            if record.samples:
                samples = made(record.samples)
                table = {column: [getattr(sample, column) for sample in samples] for column in TRACKED}
                self._client.log_table(self._run_id, table, f"completions/step-{record.step:06d}.json")
        except (MlflowException, HTTPError) as error:
            if _is_of_the_step(error):
                raise StepRefusedError(str(error)) from error
            raise

    def close(self, *, has_failed: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._run_id, "FAILED" if has_failed else "FINISHED")


def _is_of_the_step(error: MlflowException | HTTPError) -> bool:
    """Whether a server that answers will never take what was sent."""
    if isinstance(error, HTTPError):
        return error.response is not None and error.response.status_code in _REFUSED_FILES
    return error.error_code in _REFUSALS


def _allowed_name(name: str) -> str:
    """A name that MLflow takes: other characters than letters, digits and `_/.-: ` become `_`, it is at most
    250 characters long, and a path without `..` and empty parts."""
    with_characters = re.sub(r"[^/\w.\- :]", "_", name)[:_MAX_NAME]
    return posixpath.normpath(f"/{with_characters}").lstrip("/") or "_"


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
