"""A tag that moves while a job runs does not mix builds of the image in one run."""

from datetime import timedelta

import pytest

from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.image_build import pinned_image
from grpo_operator.plan.policies.rollout import OTHER_BUILD_SECONDS

from .fake_cluster import IMAGE, FakeCluster, report, spec, termination

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64
REPOSITORY = "example.test/grpo-runtime"


@pytest.mark.parametrize(
    ("image", "image_id", "pinned"),
    [
        ("registry.test:5000/a/b:1", f"registry.test:5000/a/b@{OLD}", f"registry.test:5000/a/b@{OLD}"),
        ("a/b", f"docker.io/a/b@{OLD}", f"docker.io/a/b@{OLD}"),
        ("b:1", f"docker-pullable://b@{OLD}", f"b@{OLD}"),
        ("b:1", f"docker.io/library/b@{OLD}", f"docker.io/library/b@{OLD}"),
        ("localhost:5000/b:1", f"localhost:5000/b@{OLD}", f"localhost:5000/b@{OLD}"),
        ("localhost/b:1", f"localhost/b@{OLD}", None),
        ("a/b:1", f"docker.io/library/import-2026-11-21@{OLD}", None),
        ("a/b:1", OLD, None),
        ("a/b:1", f"docker://{OLD}", None),
        ("a/b:1", "", None),
        (f"a/b@{OLD}", f"docker.io/a/b@{OLD}", None),
    ],
)
def test_an_image_is_pinned_where_every_node_can_get_it_by_digest(
    image: str, image_id: str, pinned: str | None
):
    assert pinned_image(image, image_id) == pinned


def run_all(cluster: FakeCluster, **image_ids: str) -> None:
    """Pods start; those of a role run this image."""
    for pod in list(cluster.pods.values()):
        if not pod.is_deleting and pod.phase == "Pending":
            role = "trainer" if "-trainer-" in pod.name else "rollout"
            cluster.change(pod.name, phase="Running", node="node-a", image_id=image_ids[role])


def image_of(cluster: FakeCluster, name: str) -> str:
    image: str = cluster.bodies[cluster.pod(name)]["spec"]["containers"][0]["image"]
    return image


def started(image_id: str, *, num_nodes: int = 1) -> FakeCluster:
    cluster = FakeCluster(spec(trainer={"numNodes": num_nodes}, rollout={"replicas": 1}))
    cluster.settle()
    run_all(cluster, trainer=image_id, rollout=image_id)
    cluster.settle()
    return cluster


def test_later_pods_get_the_digest_that_the_first_trainer_pod_ran():
    cluster = started(f"{REPOSITORY}@{OLD}")
    revision, configs = cluster.status.revision, set(cluster.config_names)
    assert (cluster.status.image, cluster.status.image_id) == (IMAGE, f"{REPOSITORY}@{OLD}")
    assert image_of(cluster, "trainer-a1-0") == IMAGE
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.vanish(cluster.pod("rollout-0-i0"))
    cluster.settle()
    assert image_of(cluster, "trainer-a2-0") == image_of(cluster, "rollout-0-i1") == f"{REPOSITORY}@{OLD}"
    assert (cluster.status.revision, cluster.config_names) == (revision, configs)


def test_pods_of_one_attempt_that_got_different_builds_are_replaced_by_digest():
    cluster = FakeCluster(spec(trainer={"numNodes": 2}, failurePolicy={"maxRestarts": 0}))
    cluster.settle()
    run_all(cluster, trainer=f"{REPOSITORY}@{OLD}", rollout=f"{REPOSITORY}@{NEW}")
    cluster.change(cluster.pod("trainer-a1-1"), image_id=f"{REPOSITORY}@{NEW}")
    cluster.settle()
    cluster.vanish_deleted()
    cluster.settle()
    assert (cluster.status.attempt, cluster.status.disruptions) == (2, 1)
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.reason == "ImageChanged"
    assert cluster.names("rollout") == ["rollout-0-i1", "rollout-1-i1"]
    for name in ("trainer-a2-0", "trainer-a2-1", "rollout-0-i1", "rollout-1-i1"):
        assert image_of(cluster, name) == f"{REPOSITORY}@{OLD}"
    # a node may know one image by two digests, and report the other
    run_all(cluster, trainer=f"{REPOSITORY}@{NEW}", rollout=f"{REPOSITORY}@{NEW}")
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 2)


def test_a_trainer_pod_with_another_local_image_is_not_used_and_tried_again_after_growing_pauses():
    cluster = started(OLD)
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    for attempt in (2, 3):
        run_all(cluster, trainer=NEW, rollout=OLD)
        cluster.settle()
        cluster.vanish_deleted()
        cluster.settle()
        assert cluster.status.attempt == attempt + 1
    running = cluster.condition(ConditionType.RUNNING)
    assert OLD in running.message and NEW in running.message and "cordon the node" in running.message
    assert "2 disruptions" in running.message
    assert (cluster.status.restarts, cluster.names("trainer")) == (1, [])
    cluster.now += timedelta(seconds=5)
    cluster.settle()
    run_all(cluster, trainer=OLD, rollout=OLD)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 4)


def test_an_engine_with_another_local_image_is_not_used_and_tried_again_after_a_pause():
    cluster = started(OLD)
    cluster.vanish(cluster.pod("rollout-0-i0"))
    cluster.settle()
    run_all(cluster, trainer=OLD, rollout=NEW)
    cluster.settle()
    cluster.vanish_deleted()
    plan = cluster.settle()
    assert (cluster.names("rollout"), plan.requeue_after) == ([], OTHER_BUILD_SECONDS)
    ready = cluster.condition(ConditionType.ROLLOUT_READY)
    assert (ready.status, ready.reason) == ("False", "ImageChanged")
    assert OLD in ready.message and NEW in ready.message and "rollout-0-i1 on node node-a" in ready.message
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 1)
    cluster.now += timedelta(seconds=OTHER_BUILD_SECONDS)
    cluster.settle()
    run_all(cluster, trainer=OLD, rollout=OLD)
    cluster.change(cluster.pod("rollout-0-i2"), is_ready=True)
    cluster.settle()
    assert cluster.condition(ConditionType.ROLLOUT_READY).status == "True"


def test_pods_of_other_builds_that_work_together_already_are_left_alone():
    cluster = FakeCluster(spec(trainer={"numNodes": 2})).start()
    cluster.progress = report()
    cluster.settle()
    for name, image_id in (("trainer-a1-0", OLD), ("trainer-a1-1", NEW), ("rollout-0-i0", NEW)):
        cluster.change(cluster.pod(name), image_id=image_id)
    cluster.settle()
    assert (cluster.status.attempt, cluster.names("rollout")) == (1, ["rollout-0-i0", "rollout-1-i0"])


def test_where_nodes_report_no_image_nothing_is_compared():
    cluster = started("")
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    assert (image_of(cluster, "trainer-a2-0"), cluster.status.image_id) == (IMAGE, "")
