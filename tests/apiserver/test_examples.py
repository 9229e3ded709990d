"""Every file of examples/ as `kubectl apply` meets it: a dry run on a real API server."""

from pathlib import Path

import pytest

from .api_server import Kubectl

pytestmark = pytest.mark.apiserver
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
GOLDEN = sorted((ROOT / "tests" / "operator" / "golden").glob("*.yaml"))
JOBS = [example for example in EXAMPLES if "kind: GRPOJob" in example.read_text()]


def _id(example: Path) -> str:
    return str(example.relative_to(ROOT / "examples"))


@pytest.mark.parametrize("example", EXAMPLES, ids=_id)
def test_an_example_is_accepted_as_it_is_written(example: Path, kubectl: Kubectl) -> None:
    told = kubectl.run("apply", "--dry-run=server", "--filename", str(example)).splitlines()
    assert told and all(line.endswith("created (server dry run)") for line in told)


@pytest.mark.parametrize("example", JOBS, ids=_id)
def test_a_field_with_a_spelling_mistake_in_an_example_is_refused(example: Path, kubectl: Kubectl) -> None:
    text = example.read_text()
    mistaken = text.replace("  algorithm:", "  algorythm:")
    assert mistaken != text
    refusal = kubectl.refusal_of("apply", "--dry-run=server", "--filename", "-", stdin=mistaken)
    assert "algorythm" in refusal


@pytest.mark.parametrize("children", GOLDEN, ids=lambda path: path.stem)
def test_what_the_operator_makes_of_an_example_is_accepted(children: Path, kubectl: Kubectl) -> None:
    told = kubectl.run("create", "--dry-run=server", "--filename", str(children)).splitlines()
    assert sum(line.startswith("pod/") for line in told) > 0
    assert all(line.endswith("created (server dry run)") for line in told)
