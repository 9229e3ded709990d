"""What the chart makes for Prometheus, on a real API server with the CRDs of Prometheus operator, and the
commands of the pages about it."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_cluster.binaries import dependency_folder
from grpo_cluster.versions import PROMETHEUS_OPERATOR
from grpo_scenarios.readme import commands

from .api_server import Kubectl
from .operator_harness import Namespace, wait_until
from .test_operator_rights import rendered_chart

pytestmark = [pytest.mark.apiserver, pytest.mark.matrix]

ROOT = Path(__file__).parents[2]
VALUES = ROOT / "tests" / "chart" / "values"
KINDS = {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"}
GROUP = "monitoring.coreos.com"
PAGES = [ROOT / "docs" / "guides" / "monitoring.md", *sorted((ROOT / "docs" / "runbooks").glob("*.md"))]
NEED_NO_NODE = ("get", "describe", "patch", "auth", "rollout restart")
"""How commands of kubectl go on that need neither a pod that runs nor an operator."""


@pytest.fixture(scope="module", autouse=True)
def prometheus_operator(kubectl: Kubectl) -> None:
    """The CRDs of Prometheus operator."""
    sources = dependency_folder(PROMETHEUS_OPERATOR, "github.com/prometheus-operator/prometheus-operator")
    for plural in KINDS.values():
        crd = sources / "example" / "prometheus-operator-crd" / f"{GROUP}_{plural}.yaml"
        kubectl.run("apply", "--server-side", "-f", str(crd))
    wait_until(
        "the API server serves PodMonitors and PrometheusRules",
        lambda: all(
            plural in kubectl.run("api-resources", f"--api-group={GROUP}", check=False)
            for plural in KINDS.values()
        ),
        poll_seconds=0.3,
    )


def made_by_the_chart(namespace: Namespace, *arguments: str) -> list[dict[str, Any]]:
    made = rendered_chart(namespace.name, "--set", "crd.install=false", *arguments)
    return [item for item in made if item["kind"] in {*KINDS, "ConfigMap"}]


@pytest.mark.parametrize("values", ["all-options", "monitoring"])
def test_the_api_server_takes_every_field_of_what_the_chart_makes(
    values: str, kubectl: Kubectl, namespace: Namespace
):
    made = made_by_the_chart(namespace, "--values", str(VALUES / f"{values}.yaml"))
    assert [item["kind"] for item in made].count("PodMonitor") == 2
    kubectl.run("create", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(made))
    for item in made:
        stored = kubectl.get(f"{item['kind']}/{item['metadata']['name']}", "--namespace", namespace.name)
        assert stored.get("spec") == item.get("spec")
        assert stored.get("data") == item.get("data")


def test_the_api_server_would_refuse_what_prometheus_operator_does_not_know(
    kubectl: Kubectl, namespace: Namespace
):
    made = made_by_the_chart(namespace, "--set", "monitoring.enabled=true")
    monitor = next(item for item in made if item["kind"] == "PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0]["honourLabels"] = True
    said = kubectl.refusal_of("create", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(monitor))
    assert 'unknown field "spec.podMetricsEndpoints[0].honourLabels"' in said


def test_the_commands_of_the_pages_about_alerts_work_as_they_are_written(
    kubectl: Kubectl, namespace: Namespace
):
    chart = rendered_chart(namespace.name, "--set", "crd.install=false", "--set", "monitoring.enabled=true")
    kubectl.run("apply", "-f", "-", stdin=yaml.safe_dump_all(chart))
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "grpo-operator"}}
    kubectl.run("apply", "--namespace", namespace.name, "-f", "-", stdin=yaml.safe_dump(lease))
    namespace.apply_job("copy")
    found = sorted({command for page in PAGES for command in commands(page.read_text())})
    tried = [
        command for command in found if command.startswith(tuple(f"kubectl {verb} " for verb in NEED_NO_NODE))
    ]
    assert len(tried) >= 15
    for command in tried:
        written = re.sub(r"\bNAMESPACE\b|\bteam-a\b", namespace.name, re.sub(r"\bNAME\b", "copy", command))
        kubectl.run(*shlex.split(written)[1:])
    assert namespace.job("copy")["spec"]["suspend"] in (True, False)
