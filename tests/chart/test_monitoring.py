"""What the chart makes for Prometheus and Grafana, without a cluster."""

import json
from typing import Any

import pytest
import yaml

from grpo_api.contract import endpoints, labels
from grpo_api.contract.environment import Role
from grpo_operator.cli import parse
from grpo_operator.health import METRICS_PATH

from .helm import CHART, chart_values, helm, objects

pytestmark = pytest.mark.apiserver

ON = ("--set", "monitoring.enabled=true")
MONITORING = CHART / "monitoring"
KINDS = {"PodMonitor", "PrometheusRule"}
KUBE_PROMETHEUS_STACK = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}


def of_kind(kind: str, *arguments: str) -> list[dict[str, Any]]:
    return [item for item in objects(*arguments) if item["kind"] == kind]


def monitors(*arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """That of the operator, and that of jobs."""
    operator, jobs = of_kind("PodMonitor", *ON, *arguments)
    return operator, jobs


def readers_of_reports(*arguments: str) -> list[dict[str, Any]]:
    (deployment,) = of_kind("Deployment", *arguments)
    settings, _ = parse(deployment["spec"]["template"]["spec"]["containers"][0]["args"])
    return list(settings.reports_from or ())


def test_nothing_of_it_is_there_by_default():
    assert chart_values()["monitoring"]["enabled"] is False
    assert KINDS.isdisjoint(item["kind"] for item in objects())
    assert of_kind("ConfigMap") == []
    (_operator,) = readers_of_reports()


def test_one_value_switches_all_of_it_on():
    made = objects(*ON)
    kinds = [item["kind"] for item in made]
    assert [kinds.count(kind) for kind in ("PodMonitor", "PrometheusRule", "ConfigMap")] == [2, 1, 2]
    assert {item["metadata"]["namespace"] for item in made if item["kind"] in KINDS} == {"platform"}


def test_prometheus_finds_the_port_of_the_operator_which_its_network_policy_leaves_open():
    monitor, _ = monitors()
    (deployment,) = of_kind("Deployment", *ON)
    template = deployment["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert "namespaceSelector" not in monitor["spec"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] == METRICS_PATH
    ports = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
    assert ports == [endpoint["port"]]
    (policy,) = of_kind("NetworkPolicy", *ON)
    assert policy["spec"]["podSelector"] == deployment["spec"]["selector"]
    assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": endpoint["port"]}]}]


def test_prometheus_finds_the_first_trainer_pod_of_each_job_and_its_port():
    _, monitor = monitors()
    assert monitor["spec"]["selector"]["matchLabels"] == {
        labels.MANAGED_BY: labels.OPERATOR,
        labels.ROLE: Role.TRAINER.value,
        labels.NODE_INDEX: "0",
    }
    golden = CHART.parents[1] / "tests" / "operator" / "golden"
    pods = [
        item
        for path in sorted(golden.rglob("*.yaml"))
        for item in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader)
        if isinstance(item, dict) and item.get("kind") == "Pod"
    ]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    chosen = [pod for pod in pods if wanted <= pod["metadata"]["labels"].items()]
    assert 0 < len(chosen) < len(pods)
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] == endpoints.METRICS_PATH
    for pod in chosen:
        ports = {
            port["name"]: port["containerPort"]
            for container in pod["spec"]["containers"]
            for port in container["ports"]
        }
        assert ports[endpoint["port"]] == endpoints.TRAINER_PORT


def test_jobs_are_looked_for_where_the_operator_watches_them():
    def where(*arguments: str) -> Any:
        return monitors(*arguments)[1]["spec"]["namespaceSelector"]

    assert where() == {"matchNames": ["platform"]}
    assert where("--set", "watch.namespaces={team-a,team-b}") == {"matchNames": ["team-a", "team-b"]}
    assert where("--set", "watch.allNamespaces=true") == {"any": True}


def test_a_job_writes_into_no_series_but_its_own():
    """Who makes a job decides what its pods serve. With honorLabels a pod could say that its series are of
    another namespace; a name without grpo_, or of the operator's metrics, could be taken for what it is not;
    and a million names could fill Prometheus."""
    for monitor in monitors():
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is False
    _, jobs = monitors()
    (endpoint,) = jobs["spec"]["podMetricsEndpoints"]
    assert endpoint["metricRelabelings"] == [
        {"sourceLabels": ["__name__"], "regex": "grpo_.+", "action": "keep"},
        {"sourceLabels": ["__name__"], "regex": "grpo_operator_.+", "action": "drop"},
    ]
    assert 1000 <= jobs["spec"]["sampleLimit"] <= 10000


def test_labels_and_interval_are_those_of_the_values():
    chosen = ("--set", "monitoring.labels.release=prom", "--set", "monitoring.interval=15s")
    made = [item for item in objects(*ON, *chosen) if item["kind"] in KINDS]
    assert {item["metadata"]["labels"]["release"] for item in made} == {"prom"}
    assert all(item["metadata"]["labels"]["app.kubernetes.io/name"] == "grpo-operator" for item in made)
    for monitor in monitors(*chosen):
        assert monitor["spec"]["podMetricsEndpoints"][0]["interval"] == "15s"
    for dashboard in of_kind("ConfigMap", *ON, *chosen):
        assert "release" not in dashboard["metadata"]["labels"]


def test_prometheus_may_read_the_metrics_of_jobs_besides_those_that_may_anyway():
    operator, prometheus = readers_of_reports(*ON)
    assert operator["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "grpo-operator"
    assert prometheus == KUBE_PROMETHEUS_STACK
    other = {"namespaceSelector": {"matchLabels": {"team": "platform"}}}
    chosen = ("--set-json", f"networkPolicies.reportsFrom={json.dumps([other])}")
    assert readers_of_reports(*ON, *chosen)[1:] == [other, KUBE_PROMETHEUS_STACK]
    assert readers_of_reports(*chosen)[1:] == [other]


def test_prometheus_may_be_another_one_and_is_named_once():
    other = {"ipBlock": {"cidr": "192.0.2.0/24"}}
    chosen = ("--set-json", f"monitoring.prometheus={json.dumps(other)}")
    assert readers_of_reports(*ON, *chosen)[1:] == [other]
    twice = (*chosen, "--set-json", f"networkPolicies.reportsFrom={json.dumps([other])}")
    assert readers_of_reports(*ON, *twice)[1:] == [other]
    assert readers_of_reports(*chosen)[1:] == []


def test_the_rules_are_those_of_the_file_with_the_address_of_the_runbooks_and_the_namespace():
    def groups(*arguments: str) -> Any:
        (rule,) = of_kind("PrometheusRule", *ON, *arguments)
        return rule["spec"]["groups"]

    text = (MONITORING / "rules.yaml").read_text().replace("NAMESPACE", "platform")
    assert groups() == yaml.safe_load(text.replace("RUNBOOKS/", "docs/runbooks/"))["groups"]
    place = "https://docs.example.test/runbooks"
    for address in (place, f"{place}/"):
        made = groups("--set", f"monitoring.runbooks={address}")
        assert made == yaml.safe_load(text.replace("RUNBOOKS/", f"{place}/"))["groups"]


def test_the_dashboards_are_those_of_the_files_under_the_label_of_grafanas_sidecar():
    made = of_kind("ConfigMap", *ON)
    assert all(item["metadata"]["labels"]["grafana_dashboard"] == "1" for item in made)
    found = {name: json.loads(text) for item in made for name, text in item["data"].items()}
    files = sorted((MONITORING / "dashboards").glob("*.json"))
    assert found == {f"grpo-{path.name}": json.loads(path.read_text()) for path in files}


def test_a_long_name_of_the_release_makes_names_that_kubernetes_takes():
    done = helm("template", "r" * 53, str(CHART), *ON, "--set", "crd.install=false")
    made = [item for item in yaml.safe_load_all(done.stdout) if item]
    names = [item["metadata"]["name"] for item in made if item["kind"] in {*KINDS, "ConfigMap"}]
    assert len(names) == 5
    assert max(map(len, names)) <= 63
