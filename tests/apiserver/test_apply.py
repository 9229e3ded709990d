"""`kubectl apply` of what is applied already: nothing changes, also where a job was stored with the defaults
that an earlier CRD filled in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .api_server import Kubectl

pytestmark = pytest.mark.apiserver

EXAMPLES = Path(__file__).parents[2] / "examples"
JOBS = {
    f"{path.parent.name}/{path.name}": found
    for path in sorted(EXAMPLES.rglob("*.yaml"))
    for found in yaml.safe_load_all(path.read_text())
    if found and found["kind"] == "GRPOJob"
}
DEFAULTS = {"weight": 1.0, "timeoutSeconds": 60, "maxFailureShare": 0.5}


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """One that holds nothing."""
    known = kubectl.run("get", "namespaces", "--output=name")
    if "namespace/apply\n" not in known:
        kubectl.run("create", "namespace", "apply")
    yield "apply"
    kubectl.run("delete", "grpojobs", "--all", "--namespace=apply")


def version(kubectl: Kubectl, namespace: str) -> dict[str, tuple[str, int]]:
    """Of every job there: its version and its generation."""
    found = kubectl.get("grpojobs", f"--namespace={namespace}")
    return {
        each["metadata"]["name"]: (each["metadata"]["resourceVersion"], each["metadata"]["generation"])
        for each in found["items"]
    }


def written(tmp_path: Path, jobs: list[dict[str, Any]]) -> str:
    """A manifest of jobs with names of their own."""
    named = [
        {**job, "metadata": {**job["metadata"], "name": f"job-{number}", "namespace": "apply"}}
        for number, job in enumerate(jobs)
    ]
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump_all(named))
    return str(path)


@pytest.mark.parametrize("options", [(), ("--server-side",)], ids=["by the client", "by the server"])
def test_every_example_that_is_applied_again_is_unchanged(
    kubectl: Kubectl, namespace: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    manifest = written(tmp_path, list(JOBS.values()))
    for _ in range(2):  # the second one by the server stores the status that the CRD gives
        kubectl.run("apply", *options, "-f", manifest)
    before = version(kubectl, namespace)
    said = kubectl.run("apply", *options, "-f", manifest).splitlines()
    assert len(said) == len(before) == len(JOBS)
    assert options or all(line.endswith(" unchanged") for line in said), said
    assert version(kubectl, namespace) == before


@pytest.mark.parametrize("options", [(), ("--server-side", "--force-conflicts")], ids=["client", "server"])
def test_a_reward_without_its_defaults_and_one_with_them_are_the_same_job(
    kubectl: Kubectl, namespace: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    short = JOBS["examples/copy-local.yaml"]
    [reward] = short["spec"]["rewards"]
    full = {**short, "spec": {**short["spec"], "rewards": [{**reward, **DEFAULTS}]}}
    # stored as an API server did that filled the defaults in, and then without them, and back
    for job in (full, short, full):
        kubectl.run("apply", *options, "-f", written(tmp_path, [job]))
    other = {**short, "spec": {**short["spec"], "rewards": [{**reward, "weight": 2.0}]}}
    refused = kubectl.refusal_of("apply", *options, "-f", written(tmp_path, [other]))
    assert "spec.rewards cannot be changed once the job exists" in refused
