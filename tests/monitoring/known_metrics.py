"""The metrics that trainers and the operator serve, by name, with the labels that each has in Prometheus."""

import re
from collections.abc import Mapping
from pathlib import Path

import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.run_config import JobRef
from grpo_operator.metrics import OperatorMetrics
from grpo_runtime.report.metrics import METRICS
from grpo_runtime.report.prometheus import PROMETHEUS_FILE, PrometheusFile
from grpo_runtime.report.sink import StepRecord

from .promql import names_in

MONITORING = Path(__file__).parents[2] / "charts" / "grpo-operator" / "monitoring"
OF_THE_TARGET = {"namespace", "pod", "container", "endpoint", "job", "instance"}
"""What a PodMonitor adds to every series."""

Metrics = Mapping[str, set[str]]


def served_by_trainers(folder: Path) -> Metrics:
    """Every metric of a step, as rank 0 writes it."""
    values = {re.sub("NAME|FIELD|KIND", "1", name): 1.0 for name in METRICS}
    record = StepRecord(
        attempt=1, step=1, time=0.0, values=values, engines=EngineCounts(desired=1, known=1, current=1)
    )
    job = JobRef(namespace="team-a", name="copy", uid="uid")
    PrometheusFile(folder, job=job, total_steps=9).write(record)
    return _read((folder / PROMETHEUS_FILE).read_text())


def served_by_operator() -> Metrics:
    """Every metric of the operator, which has made one request."""
    metrics = OperatorMetrics()
    metrics.count_request("get", "pods", "200")
    return _read(generate_latest(metrics.registry).decode())


def _read(text: str) -> Metrics:
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set(OF_THE_TARGET)).update(sample.labels)
    return found


def recorded(rules: Path = MONITORING / "rules.yaml") -> Metrics:
    """What the rules record, which has the labels of what it is made from."""
    return {
        rule["record"]: OF_THE_TARGET | {"grpojob"}
        for group in yaml.safe_load(rules.read_text())["groups"]
        for rule in group["rules"]
        if "record" in rule
    }


def unknown_in(expression: str, metrics: Metrics) -> list[str]:
    """What an expression asks for that is not there, as sentences."""
    names = names_in(expression)
    missing = [f"there is no metric {name}" for name in sorted(names.metrics - metrics.keys())]
    for name in sorted(names.metrics & metrics.keys()):
        missing += [f"{name} has no label {label}" for label in sorted(names.matched[name] - metrics[name])]
    every = set().union(*(metrics.get(name, set()) for name in names.metrics))
    return missing + [f"none of its metrics has a label {label}" for label in sorted(names.grouped - every)]
