"""The dashboards of the chart have no field but those of Grafana's own types. The rest is looked at in
tests/monitoring."""

import json
import subprocess
from pathlib import Path

import pytest

from grpo_cluster.binaries import build_all
from grpo_cluster.versions import DASHBOARD_LINT, program_path

from .helm import CHART

pytestmark = [pytest.mark.apiserver, pytest.mark.matrix]

DASHBOARDS = sorted((CHART / "monitoring" / "dashboards").glob("*.json"))


def said_of(*dashboards: Path) -> str:
    command = [program_path("dashboard-lint"), *dashboards]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert bool(done.stdout) == bool(done.returncode), done.stderr
    return done.stdout


def test_grafanas_types_read_every_dashboard_strictly(tmp_path: Path):
    build_all([DASHBOARD_LINT])
    assert said_of(*DASHBOARDS) == ""
    mistaken = json.loads(DASHBOARDS[0].read_text())
    mistaken["panels"][0]["titel"] = mistaken["panels"][0].pop("title")
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(mistaken))
    assert "unexpected field 'titel'" in said_of(wrong)
