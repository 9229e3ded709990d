"""Calls Helm on the chart, without a cluster."""

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from grpo_cluster.versions import program_path

CHART = Path(__file__).parents[2] / "charts" / "grpo-operator"
VALUES = Path(__file__).parent / "values"


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Call the helm of the local cluster."""
    command = [str(program_path("helm")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@cache
def template(*arguments: str) -> str:
    """The rendered chart, as release `grpo-operator` in namespace `platform`."""
    done = helm("template", "grpo-operator", str(CHART), "--namespace", "platform", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(*arguments: str) -> list[dict[str, Any]]:
    """The rendered objects. They have the CRD, which Python's own loader reads for a second."""
    return [item for item in yaml.load_all(template(*arguments), Loader=yaml.CSafeLoader) if item]


def schema() -> dict[str, Any]:
    """The chart's values.schema.json."""
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return found


def chart_values() -> dict[str, Any]:
    """The chart's values.yaml."""
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found
