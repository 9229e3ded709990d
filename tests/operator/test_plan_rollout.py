"""Rollout pods: lost ones are replaced under names that were never used, superfluous ones go."""

from dataclasses import replace
from datetime import timedelta

import pytest

from grpo_api.v1alpha1.status import ConditionType, Phase

from .fake_cluster import FakeCluster, spec


def test_a_rollout_pod_that_vanished_between_two_looks_is_replaced_under_a_new_name():
    cluster = FakeCluster().start()
    cluster.vanish(cluster.pod("rollout-1-i0"))
    cluster.step()
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]
    cluster.now += timedelta(minutes=2)
    cluster.settle()
    cluster.vanish(cluster.pod("rollout-1-i1"))
    cluster.step()
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i2"]


def twins(cluster: FakeCluster, *, is_older_ready: bool) -> None:
    """Two operators replaced the same pod at once."""
    older, newer = cluster.pod("rollout-0-i0"), cluster.pod("rollout-0-i1")
    cluster.pods[newer] = replace(
        cluster.pods[older], name=newer, uid="twin", position=(0, 1), is_ready=not is_older_ready
    )
    cluster.change(older, is_ready=is_older_ready)


def test_of_two_pods_of_one_replica_the_ready_one_stays():
    for is_older_ready, left in ((True, "rollout-0-i0"), (False, "rollout-0-i1")):
        cluster = FakeCluster(spec(rollout={"replicas": 1})).start()
        twins(cluster, is_older_ready=is_older_ready)
        cluster.step()
        assert cluster.names("rollout") == [left]


def test_of_two_pods_of_one_replica_of_which_none_is_ready_the_older_stays():
    cluster = FakeCluster(spec(rollout={"replicas": 1})).start()
    twins(cluster, is_older_ready=True)
    cluster.change(cluster.pod("rollout-0-i0"), is_ready=False)
    cluster.step()
    assert cluster.names("rollout") == ["rollout-0-i0"]


@pytest.mark.parametrize(
    "happening",
    [{"is_deleting": True}, {"phase": "Failed", "is_ready": False}],
    ids=["deleted", "failed"],
)
def test_a_lost_rollout_pod_is_replaced_at_once_under_a_new_name(happening: dict):
    cluster = FakeCluster().start()
    cluster.now += timedelta(seconds=60)
    cluster.change(cluster.pod("rollout-1-i0"), **happening)
    cluster.step()
    assert "rollout-1-i1" in cluster.names("rollout")
    assert (cluster.status.attempt, cluster.status.phase) == (1, Phase.RUNNING)
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]


def test_rollout_pods_that_their_node_refuses_at_once_are_replaced_with_pauses_and_explained():
    cluster = FakeCluster().start()
    cluster.refuse(cluster.pod("rollout-1-i0"))
    plan = cluster.step()
    assert (plan.requeue_after, cluster.names("rollout")) == (10.0, ["rollout-0-i0", "rollout-1-i0"])
    ready = cluster.condition(ConditionType.ROLLOUT_READY)
    assert (ready.status, ready.reason) == ("False", "OutOfcpu")
    cluster.now += timedelta(seconds=10)
    cluster.step()
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]
