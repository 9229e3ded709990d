"""Pods that something in the cluster takes away within seconds are made again with pauses that grow."""

from datetime import timedelta

import pytest

from grpo_api.v1alpha1.status import ConditionType, Phase

from .fake_cluster import FakeCluster, spec


def taken_away(cluster: FakeCluster, short: str, *, after: float = 1.0) -> None:
    """Somebody deletes a pod so many seconds after it was made, and it is gone at once."""
    cluster.now += timedelta(seconds=after)
    cluster.vanish(cluster.pod(short))
    cluster.settle()


def test_a_trainer_pod_that_is_gone_before_the_next_look_is_made_again_less_and_less_often():
    cluster = FakeCluster(spec(rollout={"replicas": 1}))
    cluster.step()
    pauses = []
    for _ in range(7):
        cluster.now += timedelta(seconds=2)
        cluster.vanish(cluster.pod("trainer-a1-0"))
        pause = cluster.step().requeue_after or 0.0
        pauses.append(0.0 if cluster.names("trainer") else pause)
        if not cluster.names("trainer"):
            cluster.now += timedelta(seconds=pause)
            cluster.step()
    assert pauses == [0, 5, 10, 20, 40, 60, 60]
    assert (cluster.status.attempt, cluster.status.disruptions) == (1, 0)
    cluster.now += timedelta(seconds=2)
    cluster.vanish(cluster.pod("trainer-a1-0"))
    cluster.step()
    running, failure = cluster.condition(ConditionType.RUNNING), cluster.status.last_failure
    assert failure is not None and (running.reason, failure.reason) == ("PodDeleted", "PodDeleted")
    for part in ("trainer-a1-0 was taken away 2 s after it was made", "the last of 8 in a row", "made at"):
        assert part in running.message and part in failure.message


def test_a_rollout_pod_is_too_and_the_others_are_left_alone():
    cluster = FakeCluster(spec(rollout={"replicas": 2})).start()
    cluster.now += timedelta(minutes=5)
    cluster.settle()
    taken_away(cluster, "rollout-1-i0")  # it was five minutes old
    for incarnation in (1, 2):
        taken_away(cluster, f"rollout-1-i{incarnation}")
    assert cluster.names("rollout") == ["rollout-0-i0"]
    ready = cluster.condition(ConditionType.ROLLOUT_READY)
    assert ready.reason == "PodDeleted" and "rollout-1-i2 was taken away" in ready.message
    cluster.now += timedelta(seconds=5)
    cluster.settle()
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i3"]


@pytest.mark.parametrize("is_scaled", [True, False])
def test_pods_that_live_for_a_minute_or_that_the_job_itself_gives_up_are_made_again_at_once(is_scaled: bool):
    cluster = FakeCluster(spec(rollout={"replicas": 2})).start()
    for incarnation in range(4):
        if is_scaled:
            for replicas in (1, 2):
                cluster.spec = spec(rollout={"replicas": replicas})
                cluster.settle()
                cluster.vanish_deleted()
        else:
            taken_away(cluster, f"rollout-1-i{incarnation}", after=60)
        assert cluster.names("rollout") == ["rollout-0-i0", f"rollout-1-i{incarnation + 1}"]
        cluster.run_all()
        cluster.settle()
    assert cluster.status.phase == Phase.RUNNING
