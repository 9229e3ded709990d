"""docs/guides/install.md: its helm commands render, its rights are those of the chart, its YAML is valid."""

import re
import shlex
import textwrap
from pathlib import Path

import pytest
import yaml

from .helm import CHART, helm, objects

pytestmark = pytest.mark.apiserver

ROOT = CHART.parents[1]
TEXT = (ROOT / "docs" / "guides" / "install.md").read_text()
NOT_OF_TEMPLATE = {"--install", "--create-namespace", "--wait", "--reuse-values"}


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, without the indentation of a list."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", TEXT, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(body) for _, body in found]


def commands(program: str) -> list[list[str]]:
    lines = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [words for words in map(shlex.split, lines) if words and words[0] == program]


def rendering(command: list[str]) -> list[str]:
    """The arguments of `helm template` that render what the command would install."""
    rest = [word for word in command[2:] if word not in NOT_OF_TEMPLATE]
    return ["template", *(str(Path(ROOT, word)) if word == "charts/grpo-operator" else word for word in rest)]


@pytest.mark.parametrize(
    "command", [c for c in commands("helm") if c[1] != "uninstall"], ids=lambda c: " ".join(c[-2:])
)
def test_a_helm_command_of_the_guide_is_accepted_by_the_chart(command: list[str]):
    done = helm(*rendering(command))
    assert done.returncode == 0, done.stderr


def test_the_guide_lists_exactly_the_rights_of_the_chart():
    listed = {}
    for row in re.findall(r"^\|[^|]*\| ([a-z/]+) \| ([^|]+) \|", TEXT, re.MULTILINE):
        listed[row[0]] = set(re.findall(r"get|list|watch|create|delete|patch", row[1]))
    given: dict[str, set[str]] = {}
    for item in objects("--set", "userRoles.create=false"):
        for rule in item.get("rules", ()):
            for resource in rule["resources"]:
                given.setdefault(resource, set()).update(rule["verbs"])
    assert listed == given


def test_the_values_of_the_guide_are_accepted_by_the_chart_and_narrow_who_reads_reports(tmp_path: Path):
    values = tmp_path / "values.yaml"
    values.write_text(blocks("yaml")[0])
    (deployment,) = (item for item in objects("--values", str(values)) if item["kind"] == "Deployment")
    arguments = " ".join(deployment["spec"]["template"]["spec"]["containers"][0]["args"])
    assert '"kubernetes.io/metadata.name":"monitoring"' in arguments


def test_the_yaml_of_the_guide_is_valid():
    _, argo, flux = (yaml.safe_load(text) for text in blocks("yaml"))
    assert "return health" in argo["resource.customizations.health.grpo.dev_GRPOJob"]
    (check,) = flux["spec"]["healthCheckExprs"]
    assert check["kind"] == "GRPOJob"
