"""The trackers by their names in `trackers` of a job. A new one is a file beside these and a row here."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import TrackerName, TrackerSpec
from grpo_runtime.errors import UserError
from grpo_runtime.export.access import UploadCredentials
from grpo_runtime.report.sink import MetricsSink, OpenSink, SinkContext
from grpo_runtime.report.trackers.delivery import Delivery
from grpo_runtime.report.trackers.interface import OpenTracker, TrackedRun


def _wandb() -> OpenTracker:
    from grpo_runtime.report.trackers.wandb import WandbTracker

    return WandbTracker


def _mlflow() -> OpenTracker:
    from grpo_runtime.report.trackers.mlflow import MlflowTracker

    return MlflowTracker


TRACKERS: dict[TrackerName, Callable[[], OpenTracker]] = {
    TrackerName.WANDB: _wandb,
    TrackerName.MLFLOW: _mlflow,
}
"""Each imports its library when a job asks for it."""


def open_trackers(run_config: RunConfig, *, volumes_dir: Path) -> list[OpenSink]:
    """The trackers of a run, as sinks. Raises UserError when a library or a mounted Secret is not there."""
    return [
        _opener(index, spec, run_config, volumes_dir=volumes_dir)
        for index, spec in enumerate(run_config.trackers or ())
    ]


def _opener(index: int, spec: TrackerSpec, run_config: RunConfig, *, volumes_dir: Path) -> OpenSink:
    try:
        open_tracker = TRACKERS[spec.name]()
    except ImportError as error:
        raise UserError(
            f"trackers[{index}].name ({spec.name.value}) needs a library that the image does not have "
            f"({error}): install grpo-runtime[{spec.name.value}] in it, or remove the tracker"
        ) from error
    credentials = UploadCredentials.of(spec.secret_volume, volumes_dir=volumes_dir)

    def open_sink(context: SinkContext) -> MetricsSink:
        tracked = TrackedRun(spec, run_config, credentials, context)
        return Delivery(
            partial(open_tracker, tracked), name=f"{spec.name.value} ({spec.url or 'its service'})"
        )

    return open_sink
