"""Names and the parts of pods that depend on the spec."""

import pytest

from grpo_operator.children.config import config_map, stored_spec
from grpo_operator.children.names import Names, rollout_node, rollout_position, trainer_position
from grpo_operator.children.rollout import rollout_pod
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.trainer import trainer_pod
from grpo_operator.cluster.kinds import KubeObject

from .fake_cluster import IMAGE, UID, spec


def run(name: str = "copy", **changes) -> JobSnapshot:
    return JobSnapshot.take(namespace="default", job=name, uid=UID, spec=spec(**changes), image=IMAGE)


@pytest.mark.parametrize("job", ["copy", "a" * 63, "9-lives", "with.dots", "x" * 253])
def test_every_name_is_a_host_name_of_at_most_63_characters(job: str):
    names = Names.of(job=job, uid=UID)
    made = [
        names.tokens,
        names.config("0123456789"),
        names.service("trainer"),
        names.trainer(attempt=99999, index=1023),
        names.rollout(replica=1023, incarnation=99999),
    ]
    for name in made:
        assert len(name) <= 63
        assert name[0].isalpha() and name.replace("-", "").isalnum() and name == name.lower()


def test_two_long_job_names_never_share_a_child():
    first, second = Names.of(job="a" * 60 + "1", uid=UID), Names.of(job="a" * 60 + "2", uid=UID)
    assert first.tokens != second.tokens


def test_a_job_created_anew_under_its_name_has_other_children():
    assert Names.of(job="copy", uid=UID).tokens != Names.of(job="copy", uid=UID[::-1]).tokens


def test_positions_are_read_back_from_names():
    names = Names.of(job="trainer-a1-0", uid=UID)
    assert trainer_position(names.trainer(attempt=12, index=3)) == (12, 3)
    assert rollout_position(names.rollout(replica=7, incarnation=2)) == (7, 2)
    for node in (0, 3):
        name = names.rollout(replica=7, incarnation=2, node=node)
        assert (rollout_position(name), rollout_node(name)) == ((7, 2), node)
    assert trainer_position(names.rollout(replica=7, incarnation=2)) is None


def test_only_trainer_pod_0_mounts_the_claim_in_a_folder_of_this_job():
    with_claim = run(checkpoint={"claimName": "checkpoints"}, trainer={"numNodes": 2})
    first, second = (trainer_pod(with_claim, attempt=1, index=index).body for index in (0, 1))
    volume = next(v for v in first["spec"]["volumes"] if v["name"] == "output")
    mount = next(m for m in first["spec"]["containers"][0]["volumeMounts"] if m["name"] == "output")
    assert volume["persistentVolumeClaim"] == {"claimName": "checkpoints"}
    assert mount["subPath"] == with_claim.names.base
    assert next(v for v in second["spec"]["volumes"] if v["name"] == "output") == {
        "name": "output",
        "emptyDir": {},
    }


def test_every_trainer_pod_mounts_a_claim_that_is_shared():
    shared = run(checkpoint={"claimName": "checkpoints", "shared": True}, trainer={"numNodes": 2})
    for index in (0, 1):
        pod = trainer_pod(shared, attempt=1, index=index).body["spec"]
        [volume] = [v for v in pod["volumes"] if v["name"] == "output"]
        [mount] = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "output"]
        assert volume["persistentVolumeClaim"] == {"claimName": "checkpoints"}
        assert (mount["mountPath"], mount["subPath"]) == ("/output", shared.names.base)
        assert "readOnly" not in mount


@pytest.mark.parametrize(
    ("seconds", "grace"),
    [(None, 60), (0, 60), (20, 60), (21, 63), (200, 600), (1200, 3600), (1201, 3600), (10**12, 3600)],
)
def test_a_pod_has_time_for_three_saves_and_never_less_than_a_minute(seconds: int | None, grace: int):
    pod = trainer_pod(run(), attempt=2, index=0, checkpoint_seconds=seconds).body["spec"]
    assert pod["terminationGracePeriodSeconds"] == grace
    # the supervisor needs the rest to say how its ranks ended
    assert f"--grace-seconds={grace - 10}" in pod["containers"][0]["command"]


def master_address(pod: KubeObject) -> str:
    return next(e["value"] for e in pod["spec"]["containers"][0]["env"] if e["name"] == "GRPO_MASTER_ADDR")


def test_every_trainer_pod_of_several_is_told_the_host_name_of_pod_0_of_its_attempt():
    of_two = run(trainer={"numNodes": 2})
    first = trainer_pod(of_two, attempt=2, index=0).body["spec"]
    for index in (0, 1):
        pod = trainer_pod(of_two, attempt=2, index=index).body
        assert master_address(pod) == f"{first['hostname']}.{first['subdomain']}"


def test_the_processes_of_a_single_trainer_pod_meet_inside_it_and_it_needs_no_name():
    pod = trainer_pod(run(), attempt=2, index=0).body
    assert master_address(pod) == "127.0.0.1"
    assert "subdomain" not in pod["spec"]


def test_resources_are_those_of_the_spec():
    limits = {"nvidia.com/gpu": 2, "memory": "8Gi"}
    made = run(rollout={"replicas": 1, "resources": {"limits": limits}}, engine={"tensorParallelSize": 2})
    pod = rollout_pod(made, replica=0, incarnation=0)
    assert pod.body["spec"]["containers"][0]["resources"] == {"limits": limits}


def test_what_may_change_while_a_job_runs_does_not_change_its_revision():
    base = run()
    assert run(rollout={"replicas": 5}).revision == base.revision
    assert run(failurePolicy={"maxRestarts": 9}).revision == base.revision
    assert run(startupDeadlineSeconds=60, stallTimeoutSeconds=60).revision == base.revision
    assert run(algorithm={"steps": 11}).revision != base.revision


def test_the_stored_spec_comes_back_as_it_was():
    made = run(trainer={"numNodes": 2})
    assert stored_spec(config_map(made).body) == made.spec


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ({}, ("1Gi", "1Gi")),
        ({"trainer": 0, "rollout": 1}, ("1Gi", "1Gi")),
        ({"trainer": 1, "rollout": 1}, ("1Gi", "1Gi")),
        ({"trainer": 8, "rollout": 2}, ("9Gi", "3Gi")),
    ],
)
def test_shared_memory_has_room_for_what_the_gpus_of_a_pod_exchange(limits, sizes):
    resources = {
        role: {"resources": {"limits": {"nvidia.com/gpu": number}}}
        for role, number in limits.items()
        if number
    }
    job = run(
        trainer=resources.get("trainer", {}),
        rollout={"replicas": 1, **resources.get("rollout", {})},
        engine={"tensorParallelSize": limits.get("rollout", 1)},
    )
    pods = (trainer_pod(job, attempt=1, index=0), rollout_pod(job, replica=0, incarnation=1))
    assert (
        tuple(
            volume["emptyDir"]["sizeLimit"]
            for pod in pods
            for volume in pod.body["spec"]["volumes"]
            if volume["name"] == "shm"
        )
        == sizes
    )
