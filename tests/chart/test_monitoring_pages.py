"""docs/guides/monitoring.md and docs/runbooks: kubectl and helm take their commands as they are written, and
what they name is there."""

import json
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_api.contract import labels
from grpo_api.crd import crd
from grpo_api.v1alpha1.status import ConditionType
from grpo_cluster.versions import program_path
from grpo_scenarios.readme import commands

from .helm import CHART, chart_values, helm
from .test_guide import rendering

pytestmark = pytest.mark.apiserver

ROOT = CHART.parents[1]
GUIDE = ROOT / "docs" / "guides" / "monitoring.md"
PAGES = [GUIDE, *sorted((ROOT / "docs" / "runbooks").glob("*.md"))]
COMMANDS = sorted({command for page in PAGES for command in commands(page.read_text())})
BOARDS = [
    json.loads(path.read_text()) for path in sorted((CHART / "monitoring" / "dashboards").glob("*.json"))
]
RULES = yaml.safe_load((CHART / "monitoring" / "rules.yaml").read_text())["groups"]


def of_program(program: str) -> list[str]:
    return [command for command in COMMANDS if command.startswith(f"{program} ")]


def test_every_command_is_looked_at():
    rest = set(COMMANDS) - {*of_program("kubectl"), *of_program("helm")}
    assert rest == {"curl --silent http://127.0.0.1:8081/metrics"}


@pytest.mark.parametrize("command", of_program("kubectl"))
def test_kubectl_knows_the_command_and_all_of_its_flags(command: str):
    words = shlex.split(command)
    assert not set(words) & {"|", "&&", ";"}
    verb = words[1:3] if words[1] in {"rollout", "auth"} else words[1:2]
    done = subprocess.run(
        [program_path("kubectl"), *words[1:], "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"Usage:\n  kubectl {' '.join(verb)} " in done.stdout


@pytest.mark.parametrize("command", of_program("helm"))
def test_the_chart_takes_the_helm_command(command: str):
    words = [word for word in shlex.split(command) if word != "--reset-then-reuse-values"]
    done = helm(*rendering([word.replace("NAMESPACE", "platform") for word in words]))
    assert done.returncode == 0, done.stderr


def test_labels_conditions_and_fields_in_commands_are_those_of_jobs():
    text = "\n".join(COMMANDS)
    known = {value for value in vars(labels).values() if isinstance(value, str)}
    assert set(re.findall(r"([a-z.]+/[a-z-]+)=", text)) <= known
    conditions = re.findall(r'@\.type=="(\w+)"|condition=(\w+)', text)
    assert {a or b for a, b in conditions} <= {kind.value for kind in ConditionType}
    fields = re.findall(r"\{\.(spec\.[\w.]+)\}", text)
    assert fields and not [field for field in fields if not is_field(field)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_fields_and_values_that_a_page_names_are_there(page: Path):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"`([a-z]\w*(?:\.[a-zA-Z]\w*)+)`", prose))
    assert [
        name for name in sorted(named) if not (is_field(name) or is_field(f"spec.{name}") or is_value(name))
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_dashboards_and_panels_that_a_page_names_are_there(page: Path):
    titles = {board["title"] for board in BOARDS} | {
        panel["title"] for board in BOARDS for panel in board["panels"]
    }
    named = re.findall(r"(?<![*\w])\*([A-Z][^*\n]+)\*(?!\*)", page.read_text())
    assert [name for name in named if name not in titles] == []


def test_the_guide_lists_every_alert_with_its_severity_and_its_page():
    listed = re.findall(
        r"^\| \[(\w+)\]\(\.\./runbooks/(\w+)\.md\) \| (\w+) \| .+ \|$", GUIDE.read_text(), re.MULTILINE
    )
    alerts = [rule for group in RULES for rule in group["rules"] if "alert" in rule]
    assert listed == [(rule["alert"], rule["alert"], rule["labels"]["severity"]) for rule in alerts]


def test_the_guide_lists_every_panel_by_its_row():
    listed = re.findall(
        r"^\| (GRPO \w+)? ?\| ([A-Z][\w ]+)? ?\| ([A-Z].+) \|$", GUIDE.read_text(), re.MULTILINE
    )
    made: list[tuple[str, str, list[str]]] = []
    for board in BOARDS:
        rows: list[tuple[str, list[str]]] = []
        for panel in board["panels"]:
            if panel["type"] == "row":
                rows.append((panel["title"], []))
            else:
                rows = rows or [("", [])]
                rows[-1][1].append(panel["title"])
        made += [(board["title"] if n == 0 else "", row, panels) for n, (row, panels) in enumerate(rows)]
    assert [(title, row.strip(), panels.split(", ")) for title, row, panels in listed] == made


def test_the_guide_lists_every_value():
    listed = re.findall(r"^\| `monitoring\.(\w+)` \|", GUIDE.read_text(), re.MULTILINE)
    assert listed == list(chart_values()["monitoring"])


def is_field(path: str) -> bool:
    """Whether the CRD has a field at this path, which may go through lists."""
    return is_in_schema(schema_of_jobs(), path.split("."))


@cache
def schema_of_jobs() -> dict[str, Any]:
    schema: dict[str, Any] = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def is_in_schema(schema: dict[str, Any], path: list[str]) -> bool:
    if not path:
        return True
    inner = schema.get("items", schema).get("properties", {})
    return path[0] in inner and is_in_schema(inner[path[0]], path[1:])


def is_value(path: str) -> bool:
    """Whether the chart has a value of this name."""
    values: Any = chart_values()
    for name in path.split("."):
        if not isinstance(values, dict) or name not in values:
            return False
        values = values[name]
    return True
