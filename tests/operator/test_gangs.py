"""What each gang scheduler is given: its PodGroups and what its pods say, as YAML a person can read.

After a wanted change: `pytest tests/operator/test_gangs.py --update-golden`, then read the diff.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_api.contract import labels
from grpo_api.contract.environment import Role
from grpo_api.v1alpha1.spec import Gang
from grpo_operator.children.gangs import GANG_SCHEDULERS, GangScheduler, gang_scheduler_of, pod_group
from grpo_operator.children.trainer import trainer_pod
from grpo_operator.cluster.kinds import is_pod_group, pod_groups
from grpo_operator.permissions import ANY, Permissions

from .fake_cluster import FakeCluster, run, spec
from .test_golden import Readable

GOLDEN = Path(__file__).parent / "golden" / "gangs"
QUEUES = {
    "labels": {"kai.scheduler/queue": "team-a", "team": "rl"},
    "annotations": {"scheduling.volcano.sh/queue-name": "team-a"},
}
PODS = {"metadata": QUEUES, "spec": {"priorityClassName": "training"}}


def a_cluster(gang: str, **changes: Any) -> FakeCluster:
    """A job of two trainer pods and of engines of two pods each."""
    sections = {
        "scheduling": {"gang": gang},
        "engine": {"tensorParallelSize": 2},
        "trainer": {"numNodes": 2, "podTemplate": PODS},
        "rollout": {"replicas": 1, "nodesPerReplica": 2},
    }
    cluster = FakeCluster(spec(**sections | changes))
    cluster.permissions = Permissions(gangs=(ANY,), labels=(ANY,), priority_classes=(ANY,))
    return cluster


def about_the_group(pod: dict[str, Any]) -> dict[str, Any]:
    """What a pod says to its scheduler."""
    metadata, fields = pod["metadata"], ("schedulerName", "priorityClassName", "schedulingGroup", "affinity")
    told = {
        "name": metadata["name"],
        "labels": {key: value for key, value in metadata["labels"].items() if not is_own(key)},
        "annotations": metadata.get("annotations", {}),
    }
    return {
        "kind": "Pod",
        "metadata": told,
        "spec": {key: pod["spec"][key] for key in fields if key in pod["spec"]},
    }


def is_own(label: str) -> bool:
    """Whether a label is one that every pod of a job has."""
    is_ours = label.startswith(("grpo.dev/", "app.kubernetes.io/"))
    return is_ours and label != labels.POD_GROUP


def rendered(gang: str) -> str:
    cluster = a_cluster(gang)
    made = {child.name: child for _ in range(2) for child in cluster.step().create}
    groups = [child.body for child in made.values() if is_pod_group(child.kind)]
    pods = [about_the_group(child.body) for child in made.values() if child.body["kind"] == "Pod"]
    return yaml.dump_all([*groups, *pods], Dumper=Readable, width=100)


@pytest.mark.parametrize("gang", Gang, ids=lambda gang: gang.value)
def test_the_objects_of_a_gang_scheduler_are_the_golden_ones(gang: Gang, is_updating_golden: bool):
    golden = GOLDEN / f"{gang.value}.yaml"
    made = rendered(gang.value)
    if is_updating_golden:
        golden.write_text(made)
    assert golden.exists(), f"run with --update-golden to write {golden.name}"
    assert made == golden.read_text()


def test_every_gang_scheduler_has_a_row_and_a_golden_file():
    assert list(GANG_SCHEDULERS) == list(Gang)
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == {gang.value for gang in Gang}


def test_another_gang_scheduler_is_one_row(monkeypatch: pytest.MonkeyPatch):
    row = GangScheduler(
        pod_groups("example.test", "v1", comes_with="a scheduler of groups"),
        scheduler_name="example",
        spec=lambda members: {"size": members.num},
        member=lambda name: {"metadata": {"annotations": {"example.test/group": name}}},
    )
    monkeypatch.setitem(GANG_SCHEDULERS, Gang.VOLCANO, row)  # type: ignore[arg-type]
    cluster = a_cluster("Volcano")
    cluster.settle()
    (group,) = (name for name in cluster.pod_groups if "-trainer-" in name)
    assert cluster.bodies[group]["apiVersion"] == "example.test/v1"
    assert cluster.bodies[group]["spec"] == {"size": 2}
    pod = cluster.bodies[cluster.pod("trainer-a1-1")]
    assert pod["metadata"]["annotations"]["example.test/group"] == group
    assert pod["spec"]["schedulerName"] == "example"


def test_the_scheduler_that_a_job_names_wins():
    named = {"numNodes": 2, "podTemplate": {"spec": {"schedulerName": "default-scheduler"}}}
    snapshot = run(scheduling={"gang": "Coscheduling"}, trainer=named)
    assert trainer_pod(snapshot, attempt=1, index=0).body["spec"]["schedulerName"] == "default-scheduler"


def test_a_pod_that_comes_alone_goes_to_the_scheduler_of_the_others_without_a_group():
    snapshot = run(scheduling={"gang": "KAI"}, trainer={"numNodes": 1})
    pod = trainer_pod(snapshot, attempt=1, index=0).body
    assert pod["spec"]["schedulerName"] == "kai-scheduler"
    assert "annotations" not in pod["metadata"] and labels.POD_GROUP not in pod["metadata"]["labels"]


def test_a_pod_group_of_kai_is_in_the_default_queue_where_a_job_names_none():
    snapshot = run(scheduling={"gang": "KAI"}, trainer={"numNodes": 2})
    scheduler = gang_scheduler_of(snapshot)
    assert scheduler is not None
    group = pod_group(snapshot, scheduler, name="x", role=Role.TRAINER, template=None)
    assert group.body["spec"] == {"minMember": 2, "queue": "default-queue"}


def test_a_job_without_gangs_has_pods_as_before():
    plain, near = run(trainer={"numNodes": 2}), run(trainer={"numNodes": 2}, scheduling={})
    assert trainer_pod(near, attempt=1, index=0).body["spec"].keys() == (
        trainer_pod(plain, attempt=1, index=0).body["spec"].keys()
    )
    assert gang_scheduler_of(plain) is None and gang_scheduler_of(near) is None
