"""The metrics of the newest step as Prometheus text: rank 0 writes the file, the supervisor serves it."""

import re
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from grpo_api.contract.run_config import JobRef
from grpo_runtime.report.sink import StepRecord
from grpo_runtime.storage.files import write_atomically

PROMETHEUS_FILE = "metrics.prom"
_PREFIX = "grpo_"
_REWARD_FUNCTION = re.compile(r"rewards/(?P<function>[^/]+)/(?P<statistic>mean|std)")


class PrometheusFile:
    """The file in `run_dir` with one gauge for each metric of the newest step, and for step, attempt and
    engines.

    All have the namespace and the name of `job` as labels.
    """

    def __init__(self, run_dir: Path, *, job: JobRef) -> None:
        self._path = run_dir / PROMETHEUS_FILE
        self._labels = {"namespace": job.namespace, "job": job.name}

    def write(self, record: StepRecord) -> None:
        """Replace the file."""
        engines = {f"engines/{name}": number for name, number in record.engines.to_object().items()}
        metrics = {**record.values, "step": record.step, "attempt": record.attempt, **engines}
        write_atomically(self._path, prometheus_text(metrics, labels=self._labels))

    def close(self) -> None:
        """Leave the last step to be served while the supervisor runs."""


def prometheus_text(metrics: Mapping[str, float], *, labels: Mapping[str, str]) -> str:
    """One gauge for each metric: `completions/mean_length` becomes `grpo_completions_mean_length`.

    `rewards/NAME/mean` becomes `grpo_rewards_mean` with a label `function`, so that dashboards need not know
    the names of the reward functions. A user's own metric that would get the same name is left out.
    """
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    has_function: dict[str, bool] = {}
    # rewards first, because all gauges of one name have the same labels
    for name in sorted(metrics, key=lambda name: _REWARD_FUNCTION.fullmatch(name) is None):
        match = _REWARD_FUNCTION.fullmatch(name)
        own = {"function": match["function"]} if match else {}
        stem = f"rewards/{match['statistic']}" if match else name
        metric = _PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", stem)
        if metric not in gauges:
            help_text = f"{stem} of the newest step"
            gauges[metric] = Gauge(metric, help_text, [*labels, *own], registry=registry)
            has_function[metric] = match is not None
        if has_function[metric] == (match is not None):
            gauges[metric].labels(**labels, **own).set(metrics[name])
    return generate_latest(registry).decode()
