"""The metrics of the newest step as Prometheus text: rank 0 writes the file, the supervisor serves it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from grpo_api.contract.run_config import JobRef
from grpo_runtime.report.phases import STEP_TIME, phase_of
from grpo_runtime.report.sink import StepRecord
from grpo_runtime.storage.files import read_if_there, write_atomically

PROMETHEUS_FILE = "metrics.prom"
_PREFIX = "grpo_"
PHASE_SECONDS = "weight_sync_phase_seconds"
_LABELLED = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<stem>(eval/)?rewards)/(?P<function>[^/]+)/(?P<statistic>mean|std|failures|failed_calls)",
        r"(?P<stem>(eval/)?env)/(?P<environment>[^/]+)/(?P<statistic>[^/]+)",
        r"(?P<stem>env)/(?P<environment>[^/]+)/(?P<statistic>overridden)/(?P<field>[^/]+)",
        r"(?P<stem>env)/(?P<environment>[^/]+)/(?P<statistic>failures)/(?P<kind>[^/]+)",
        r"(?P<stem>async)/(?P<statistic>groups_by_staleness)/(?P<staleness>\d+)",
    )
)
"""Names of which parts become labels: those between a stem and what is measured, and behind that."""


class PrometheusFile:
    """The file in `run_dir` with one gauge for each metric of the newest step, and for step, attempt and
    engines. `total_steps` is how many the run has.

    All have the name of `job` as the label `grpojob`. Prometheus adds labels `job` and `namespace` of its
    own, which say where it read a metric, and would rename others of these names.
    """

    def __init__(self, run_dir: Path, *, job: JobRef, total_steps: int) -> None:
        self._path = run_dir / PROMETHEUS_FILE
        self._total_steps = total_steps
        self._labels = {"grpojob": job.name}

    def write(self, record: StepRecord) -> None:
        """Replace the file."""
        engines = record.engines
        metrics = {
            **record.values,
            "step": record.step,
            "total_steps": self._total_steps,
            "attempt": record.attempt,
            "engines/known": engines.known,
            "engines/current": engines.current,
            "engines/hung": len(engines.hung or ()),
        }
        write_atomically(self._path, prometheus_text(metrics, labels=self._labels))

    def close(self, *, has_failed: bool = False) -> None:
        """Leave the last step to be served while the supervisor runs."""


def served_metrics(run_dir: Path, *, job: JobRef, desired: int | None) -> bytes:
    """The file, which is there after the first step of the attempt, and how many engines the job asks for.

    `desired` is None where no operator has said it. A job may be scaled: its attempt then began with another
    number.
    """
    written = read_if_there(run_dir / PROMETHEUS_FILE) or b""
    if desired is None:
        return written
    return written + prometheus_text({"engines/desired": desired}, labels={"grpojob": job.name}).encode()


def prometheus_text(metrics: Mapping[str, float], *, labels: Mapping[str, str]) -> str:
    """One gauge for each metric: `completions/mean_length` becomes `grpo_completions_mean_length`.

    `rewards/NAME/mean` becomes `grpo_rewards_mean` with a label `function`, so that dashboards need not know
    the names of the reward functions, and `env/NAME/reward` becomes `grpo_env_reward` with a label
    `environment`. `sync/PHASE_seconds` is also in `grpo_weight_sync_phase_seconds` with a label `phase`, so
    that one expression shows all phases, and `step_time` is `grpo_step_time_seconds`. A user's own metric
    that would get the name of one with a label, or of the time of a step, is left out.
    """
    gauges: dict[str, _Gauge] = {}
    # the last of a name is written, and a user's own metric may have the name of this one
    ordered = sorted(metrics.items(), key=lambda one: one[0] == STEP_TIME)
    series = [one for name, value in ordered for one in _series(name, value)]
    # those with a label first, because all gauges of one name have the same labels
    for stem, own, value in sorted(series, key=lambda one: not one[1]):
        metric = _PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", stem)
        gauge = gauges.setdefault(metric, _Gauge(f"{stem} of the newest step", (*labels, *own), {}))
        if gauge.label_names == (*labels, *own):
            gauge.values[*labels.values(), *own.values()] = value
    return generate_latest(_Collected([gauge.family(metric) for metric, gauge in gauges.items()])).decode()


@dataclass(frozen=True)
class _Gauge:
    """What is written of one name: `values` are by the values of the labels. prometheus_client's own Gauge is
    made to be changed by many threads, and takes several times as long."""

    help_text: str
    label_names: tuple[str, ...]
    values: dict[tuple[str, ...], float]

    def family(self, metric: str) -> GaugeMetricFamily:
        """The metric as prometheus_client writes it."""
        family = GaugeMetricFamily(metric, self.help_text, labels=self.label_names)
        for label_values, value in self.values.items():
            family.add_metric(label_values, value)
        return family


class _Collected(Collector):
    """Metrics that were collected already."""

    def __init__(self, families: Sequence[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> Sequence[GaugeMetricFamily]:
        """All of it."""
        return self._families


def _series(name: str, value: float) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """What a metric is called in Prometheus, its labels besides those of the job, and its value."""
    for pattern in _LABELLED:
        if match := pattern.fullmatch(name):
            labels = match.groupdict()
            yield f"{labels.pop('stem')}/{labels.pop('statistic')}", labels, value
            return
    phase = phase_of(name)
    if phase is not None:
        yield PHASE_SECONDS, {"phase": phase}, value
    yield f"{name}_seconds" if name == STEP_TIME else name, {}, value
