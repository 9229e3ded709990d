"""The newest metrics as Prometheus text: rank 0 writes the file, the supervisor serves it."""

import re
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from grpo_runtime.report.files import write_atomically

PROMETHEUS_FILE = "metrics.prom"
_PREFIX = "grpo_"
_REWARD_FUNCTION = re.compile(r"rewards/(?P<function>[^/]+)/(?P<statistic>mean|std)")


def write_prometheus(run_dir: Path, metrics: Mapping[str, float], *, labels: Mapping[str, str]) -> None:
    """Replace the metrics file in `run_dir` by one gauge for each of `metrics`, all with `labels`."""
    write_atomically(run_dir / PROMETHEUS_FILE, prometheus_text(metrics, labels=labels))


def prometheus_text(metrics: Mapping[str, float], *, labels: Mapping[str, str]) -> str:
    """`completions/mean_length` becomes `grpo_completions_mean_length`; `rewards/NAME/mean` becomes
    `grpo_rewards_mean` with a label `function`, so that dashboards need not know the names. That name is
    then taken: another metric that would get it, which only a user's own can, is left out."""
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    has_function: dict[str, bool] = {}
    # the rewards first: all gauges of one name have the same labels
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
