"""The alerts of the chart: Prometheus reads them, they fire and do not fire as jobs.yaml and operator.yaml
say, and each has a page about what to do."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_api.contract.mismatch import BOUND_NATS

from .known_metrics import MONITORING, Metrics, unknown_in

RULES = MONITORING / "rules.yaml"
CASES = sorted(Path(__file__).parent.glob("*.yaml"))
RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
SECTIONS = ["What it means", "How to see it", "What to do"]

ALL = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in ALL if "alert" in rule}


def test_promtool_says_nothing_against_the_rules(promtool: Path):
    done = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should_and_only_then(cases: Path, promtool: Path):
    done = run(promtool, "test", "rules", str(cases))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    tests = [test for path in CASES for test in yaml.safe_load(path.read_text())["tests"]]
    asked = [case for test in tests for case in test.get("alert_rule_test", ())]
    assert {case["alertname"] for case in asked if case.get("exp_alerts")} == set(ALERTS)
    assert {case["alertname"] for case in asked if not case.get("exp_alerts")} == set(ALERTS)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_for_metrics_and_labels_that_there_are(rule: dict[str, Any], metrics: Metrics):
    assert unknown_in(rule["expr"], metrics) == []


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_a_severity_a_summary_and_a_page_with_its_name(name: str):
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in {"warning", "critical"}
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["runbook_url"] == f"RUNBOOKS/{name}.md"
    page = (RUNBOOKS / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS
    assert re.search(r"^```sh$", page, re.MULTILINE)


def test_there_is_no_page_without_an_alert():
    assert {path.stem for path in RUNBOOKS.iterdir()} == set(ALERTS)


def test_the_alert_about_the_mismatch_has_the_bound_of_the_condition():
    assert ALERTS["GRPOMismatchHigh"]["expr"].endswith(f"> {BOUND_NATS:g}")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
