"""What kstatus, Flux and Argo CD say of a job in every phase, by their own libraries and with the files of
the chart: the table of docs/guides/install.md."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from grpo_cluster.binaries import build_all
from grpo_cluster.versions import GITOPS_HEALTH, program_path

from ..gitops.phases import PHASES, recorded, table

pytestmark = [pytest.mark.apiserver, pytest.mark.matrix]
FILES = Path(__file__).parents[2] / "charts" / "grpo-operator" / "gitops"


@pytest.fixture(scope="module")
def program() -> Path:
    build_all((GITOPS_HEALTH,))
    return program_path("gitops-health")


def ask(program: Path, *objects: dict[str, Any]) -> list[dict[str, dict[str, str]]]:
    """What each tool says of each object."""
    texts = [f"-flux={FILES / 'flux-health.yaml'}", f"-argo={FILES / 'argocd-health.lua'}"]
    done = subprocess.run(
        [program, *texts],
        input="\n".join(map(json.dumps, objects)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_tools_say_of_every_phase_what_the_guides_table_says(program: Path):
    said = ask(program, *(recorded(phase.__name__) for phase in PHASES))
    words = [tuple(one[tool]["status"] for tool in ("kstatus", "flux", "argo")) for one in said]
    assert words == [row[2:] for row in table().values()]


def test_argo_cd_shows_the_sentence_of_ready(program: Path):
    of = [recorded(phase.__name__) for phase in PHASES if phase.__name__ not in ("unseen", "deleted")]
    ready = [next(c for c in job["status"]["conditions"] if c["type"] == "Ready") for job in of]
    assert [one["argo"]["message"] for one in ask(program, *of)] == [c["message"] for c in ready]


def test_kstatus_and_flux_misjudge_an_object_without_status_which_is_why_the_crd_has_a_default(program: Path):
    job = recorded("unseen")
    del job["status"]
    (said,) = ask(program, job)
    assert [said[tool]["status"] for tool in ("kstatus", "flux", "argo")] == [
        "Current",
        "Error",
        "Progressing",
    ]
    assert "no such attribute" in said["flux"]["message"]
