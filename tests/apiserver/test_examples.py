"""Every file of examples/ as `kubectl apply` meets it: a dry run on a real API server."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from .api_server import Kubectl

pytestmark = pytest.mark.apiserver
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
GOLDEN = sorted((ROOT / "tests" / "operator" / "golden").glob("*.yaml"))
JOBS = [example for example in EXAMPLES if "kind: GRPOJob" in example.read_text()]


def names_of(files: Iterable[Path]) -> list[str]:
    """The options with which kubectl reads these files: starting it takes longer than a dry run."""
    return [f"--filename={file}" for file in files]


def test_every_example_is_accepted_as_it_is_written(kubectl: Kubectl) -> None:
    told = kubectl.run("apply", "--dry-run=server", *names_of(EXAMPLES)).splitlines()
    assert len(told) >= len(EXAMPLES)
    assert [line for line in told if not line.endswith("created (server dry run)")] == []


def test_a_field_with_a_spelling_mistake_in_an_example_is_refused(kubectl: Kubectl, tmp_path: Path) -> None:
    mistaken = [tmp_path / f"{number}.yaml" for number in range(len(JOBS))]
    for job, copy in zip(JOBS, mistaken, strict=True):
        text = job.read_text()
        copy.write_text(text.replace("  algorithm:", "  algorythm:"))
        assert copy.read_text() != text
    refusal = kubectl.refusal_of("apply", "--dry-run=server", *names_of(mistaken))
    assert refusal.count('unknown field "spec.algorythm"') == len(JOBS), refusal


def test_what_the_operator_makes_of_every_example_is_accepted(kubectl: Kubectl) -> None:
    told = kubectl.run("create", "--dry-run=server", *names_of(GOLDEN)).splitlines()
    num_pods = [golden.read_text().count("\nkind: Pod\n") for golden in GOLDEN]
    assert sum(line.startswith("pod/") for line in told) == sum(num_pods)
    assert min(num_pods) > 0
    assert [line for line in told if not line.endswith("created (server dry run)")] == []
