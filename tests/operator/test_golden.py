"""What the operator creates for every example, as YAML a person can read.

After a wanted change: `pytest tests/operator/test_golden.py --update-golden`, then read the diff.
"""

from pathlib import Path

import pytest
import yaml

from grpo_api.v1alpha1.job import parse_job
from grpo_operator.cluster.kinds import PODS

from .fake_cluster import FakeCluster

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
GOLDEN = Path(__file__).parent / "golden"


class Readable(yaml.SafeDumper):
    """Texts of several lines as blocks."""

    def ignore_aliases(self, data: object) -> bool:
        return True


Readable.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def rendered(example: Path) -> str:
    (found,) = (item for item in yaml.safe_load_all(example.read_text()) if item["kind"] == "GRPOJob")
    cluster = FakeCluster(parse_job(found).spec, name=found["metadata"]["name"])
    first = cluster.step().create
    names = {child.name for child in first}
    # The rollout pods come once the trainer pods have nodes.
    made = (*first, *(child for child in cluster.step().create if child.name not in names))
    return yaml.dump_all((child.body for child in made), Dumper=Readable, width=100)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_children_of_an_example_are_the_golden_ones(example: Path, is_updating_golden: bool):
    golden = GOLDEN / f"{example.stem}.yaml"
    made = rendered(example)
    if is_updating_golden:
        golden.write_text(made)
    assert golden.exists(), f"run with --update-golden to write {golden.name}"
    assert made == golden.read_text()


def test_every_golden_file_has_its_example():
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_pod_of_an_example_meets_pod_security_restricted(example: Path):
    pods = [child for child in yaml.safe_load_all(rendered(example)) if child["kind"] == PODS.name]
    assert pods
    for pod in pods:
        spec = pod["spec"]
        assert spec["securityContext"]["runAsUser"] == 1000
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert {"/tmp", "/dev/shm", "/cache"} <= mounted  # noqa: S108 - volumes of the pod
        shm = next(volume for volume in spec["volumes"] if volume["name"] == "shm")
        assert shm["emptyDir"]["medium"] == "Memory" and shm["emptyDir"]["sizeLimit"]
