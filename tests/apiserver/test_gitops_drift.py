"""A job in Git is in sync with the one in the cluster, whatever phase it is in."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ..gitops.phases import NAMES, recorded
from .api_server import Kubectl
from .operator_harness import EXAMPLES, GROUP, Namespace, OperatorProcess, wait_until
from .test_examples import JOBS

pytestmark = pytest.mark.apiserver
COPY = EXAMPLES / "copy-disaggregated.yaml"


def differs(git: Any, live: Any) -> bool:
    """Whether Argo CD calls an object OutOfSync. By default it merges the manifest into the live object, a
    list as a whole, after it has left out of the live one, also in lists, the fields that the manifest lacks
    (gitops-engine, `pkg/diff`)."""
    if isinstance(git, dict) and isinstance(live, dict):
        return any(key not in live or differs(value, live[key]) for key, value in git.items())
    if isinstance(git, list) and isinstance(live, list):
        return len(git) != len(live) or any(differs(*pair) for pair in zip(git, live, strict=True))
    return bool(git != live)


def manifests(*files: Path) -> list[dict[str, Any]]:
    """The GRPOJobs of these files."""
    found = (item for file in files for item in yaml.safe_load_all(file.read_text()))
    return [item for item in found if item["kind"] == "GRPOJob"]


def out_of_sync(namespace: Namespace, *files: Path) -> list[str]:
    """The jobs that Argo CD calls OutOfSync."""
    names = ((job, job["metadata"]["name"]) for job in manifests(*files))
    return [name for job, name in names if differs(job, namespace.job(name))]


def test_a_job_that_is_scaled_is_in_sync_where_git_leaves_the_replicas_out(
    namespace: Namespace, kubectl: Kubectl, tmp_path: Path
):
    (job,) = manifests(COPY)
    with_replicas, without = tmp_path / "with.yaml", tmp_path / "without.yaml"
    with_replicas.write_text(yaml.safe_dump(job))
    job["metadata"]["name"] = "scaled"
    del job["spec"]["rollout"]["replicas"]
    without.write_text(yaml.safe_dump(job))
    here, apply = f"--namespace={namespace.name}", ("apply", "--server-side")
    files = [f"--filename={file}" for file in (with_replicas, without)]
    kubectl.run(*apply, here, *files)
    assert namespace.status("scaled") == {"observedGeneration": -1}  # no tool calls it ready
    assert kubectl.differences("--server-side", here, *files) == ""
    for name in ("copy", "scaled"):
        scale = {"spec": {"replicas": 3}}
        namespace.objects.patch_namespaced_custom_object_scale(
            *GROUP, namespace.name, "grpojobs", name, scale
        )

    assert kubectl.differences("--server-side", here, files[1]) == ""
    assert "serverside-applied" in kubectl.run(*apply, here, files[1])
    assert namespace.job("scaled")["spec"]["rollout"]["replicas"] == 3
    assert "conflict" in kubectl.refusal_of(*apply, here, files[0])
    assert out_of_sync(namespace, with_replicas, without) == ["copy"]


@pytest.mark.matrix
def test_every_example_is_in_sync_in_every_phase(
    namespace: Namespace, operator: OperatorProcess, kubectl: Kubectl
):
    here = f"--namespace={namespace.name}"
    files = [f"--filename={file}" for file in JOBS]
    kubectl.run("apply", "--server-side", here, *files)
    names = [job["metadata"]["name"] for job in manifests(*JOBS)]
    assert len(names) >= len(JOBS)

    operator.start()
    wait_until("the operator has seen all", lambda: all("phase" in namespace.status(name) for name in names))
    # it would write a status between the two looks of a diff
    assert operator.stop() == 0
    assert kubectl.differences("--server-side", here, *files) == ""
    assert out_of_sync(namespace, *JOBS) == []

    for phase in NAMES:
        for name in names:
            # `observedGeneration` of another phase is of another spec
            seen = {"observedGeneration": namespace.job(name)["metadata"]["generation"]}
            namespace.patch_status(recorded(phase)["status"] | seen, name)
        assert kubectl.differences("--server-side", here, *files) == "", phase
        assert out_of_sync(namespace, *JOBS) == [], phase
