"""The attempt that follows a failure: when it starts, after how long a pause, and when there is none."""

from datetime import datetime, timedelta

import pytest

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.observed import Refusal

from .fake_cluster import NOW, FakeCluster, report, spec, termination


def two_nodes(max_restarts: int = 3) -> FakeCluster:
    return FakeCluster(spec(trainer={"numNodes": 2}, failurePolicy={"maxRestarts": max_restarts})).start()


def test_the_next_attempt_waits_for_the_number_of_engines_that_is_asked_for_now():
    cluster = FakeCluster(spec(rollout={"replicas": 2})).start()
    revision = cluster.status.revision
    cluster.spec, cluster.generation = spec(rollout={"replicas": 3}), 2
    cluster.settle()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    told = {}
    for name in ("trainer-a1-0", "trainer-a2-0"):
        (container,) = cluster.bodies[cluster.pod(name)]["spec"]["containers"]
        told[name] = next(e["value"] for e in container["env"] if e["name"] == "GRPO_ROLLOUT_REPLICAS")
    assert told == {"trainer-a1-0": "2", "trainer-a2-0": "3"}
    assert (cluster.status.revision, len(cluster.config_names)) == (revision, 1)


def test_a_failed_trainer_restarts_the_whole_gang():
    cluster = two_nodes()
    cluster.end(cluster.pod("trainer-a1-1"), termination(1, reason="OOMKilled"))
    cluster.step()
    assert (cluster.status.attempt, cluster.status.restarts, cluster.status.phase) == (2, 1, Phase.RESTARTING)
    assert cluster.names("trainer", is_deleting=True) == ["trainer-a1-0"]
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]


def test_the_next_attempt_waits_until_every_older_pod_is_gone():
    cluster = two_nodes()
    cluster.end(cluster.pod("trainer-a1-1"), termination(1, reason="OOMKilled"))
    cluster.settle()
    assert not [name for name in cluster.names("trainer") if "-a2-" in name]
    assert "must end first" in cluster.condition(ConditionType.RUNNING).message
    cluster.vanish_deleted()
    cluster.step()
    assert cluster.condition(ConditionType.RUNNING).reason == "CreatingPods"  # nothing is waited for any more
    cluster.settle()
    assert [name for name in cluster.names("trainer") if "-a2-" in name] == ["trainer-a2-0", "trainer-a2-1"]


def test_whether_the_node_of_a_pod_that_does_not_end_is_lost_is_asked_long_after_its_grace_period():
    cluster = two_nodes()
    cluster.end(cluster.pod("trainer-a1-1"), termination(1, reason="OOMKilled"))
    cluster.step()
    ends_by = NOW + timedelta(seconds=60)
    cluster.change(cluster.pod("trainer-a1-0"), must_end_by=ends_by)

    def said(at: datetime) -> tuple[str, float | None]:
        cluster.now = at
        cluster.settle()
        return cluster.condition(ConditionType.RUNNING).message, cluster.plan().requeue_after

    first, asks_after = said(NOW)
    assert first.endswith("on node node-a of attempt 1 must end first") and asks_after is not None
    assert said(NOW + timedelta(seconds=asks_after - 1))[0] == first
    asked, _ = said(NOW + timedelta(seconds=asks_after))
    assert asked.startswith(
        f"{first}; its grace period was over at {ends_by:%Y-%m-%dT%H:%M:%SZ}: is the node lost?"
    )
    assert "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in asked


def test_an_ended_pod_stays_for_its_logs_until_the_next_attempt_is_over():
    cluster = FakeCluster().start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    assert cluster.names("trainer") == ["trainer-a1-0", "trainer-a2-0"]
    cluster.run_all()
    cluster.settle()
    cluster.end(cluster.pod("trainer-a2-0"), termination(1, "boom"))
    cluster.settle()
    assert cluster.names("trainer", is_deleting=True) == ["trainer-a1-0"]


def test_restarts_end_at_max_restarts_with_the_cause_in_the_sentence():
    cluster = FakeCluster(spec(failurePolicy={"maxRestarts": 1})).start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    cluster.run_all()
    cluster.end(cluster.pod("trainer-a2-0"), termination(75, "flaky network"))
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt, cluster.status.restarts) == (Phase.FAILED, 2, 1)
    failed = cluster.condition(ConditionType.FAILED)
    assert failed.reason == "TransientError"
    assert "maxRestarts (1)" in failed.message and "flaky network" in failed.message


def test_attempts_that_fail_quickly_are_spaced_out():
    cluster = FakeCluster().start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    cluster.end(cluster.pod("trainer-a2-0"), termination(1, "boom"))
    plan = cluster.step()
    assert plan.requeue_after == 5.0
    assert "trainer-a3-0" not in cluster.names("trainer")
    cluster.now += timedelta(seconds=5)
    cluster.step()
    assert "trainer-a3-0" in cluster.names("trainer")


def test_the_pause_runs_from_the_newest_failure_also_of_an_attempt_that_never_ran():
    cluster = FakeCluster().start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    cluster.now += timedelta(seconds=50)
    cluster.end(cluster.pod("trainer-a2-0"), termination(1, "boom"))
    plan = cluster.step()
    restarting = cluster.condition(ConditionType.RESTARTING)
    assert restarting.last_transition_time == cluster.now and "attempt 3" in restarting.message
    assert (plan.requeue_after, cluster.names("trainer", is_deleting=True)) == (5.0, ["trainer-a1-0"])
    assert "trainer-a3-0" not in cluster.names("trainer")


def test_a_restart_is_over_when_the_new_gang_runs():
    cluster = FakeCluster().start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert cluster.condition(ConditionType.RESTARTING).status == "False"
    assert cluster.status.phase == Phase.RUNNING


@pytest.mark.parametrize(
    ("asked", "measured", "given"),
    [(None, None, 60), (None, 200, 200), (30, 200, 30), (900, 200, 200), (None, 2**53 - 1, 3600)],
)
def test_the_rest_of_a_lost_gang_may_take_as_long_as_a_save(
    asked: int | None, measured: int | None, given: int
):
    template = {"podTemplate": {"spec": {"terminationGracePeriodSeconds": asked}}} if asked else {}
    cluster = FakeCluster(
        spec(
            model={"source": "hf://Qwen/Qwen2.5-7B"},
            checkpoint={"claimName": "runs"},
            trainer={"numNodes": 2, **template},
        )
    ).start()
    if measured:
        cluster.progress = report(checkpoint_seconds=measured, checkpoint_step=1)
        cluster.settle()
    cluster.end(cluster.pod("trainer-a1-1"), termination(1, reason="OOMKilled"))
    (deletion,) = cluster.step().delete
    assert (deletion.name, deletion.grace_seconds) == (cluster.pod("trainer-a1-0"), given)


def test_no_engine_is_current_while_no_trainer_runs():
    cluster = FakeCluster().start()
    cluster.progress = report()
    cluster.settle()
    assert cluster.status.rollout.current == 2
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    assert cluster.status.rollout.current == 0


def test_reports_of_an_earlier_attempt_are_ignored():
    cluster = FakeCluster().start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    cluster.run_all()
    cluster.progress = report(step=9)
    cluster.settle()
    assert cluster.status.step == 0


def test_why_a_pod_of_the_attempt_before_was_refused_is_not_said_of_the_next():
    cluster = FakeCluster(spec(trainer={"numNodes": 2}))
    cluster.step()
    cluster.vanish(cluster.pod("trainer-a1-1"))
    cluster.refusal = Refusal(cluster.pod("trainer-a1-1"), ReasonMessage("QuotaExceeded", "does not fit"))
    cluster.status = cluster.plan().status
    assert cluster.condition(ConditionType.RUNNING).reason == "QuotaExceeded"
    cluster.refusal = None
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, reason="OOMKilled"))
    cluster.status = cluster.plan().status
    assert (cluster.status.attempt, cluster.condition(ConditionType.RUNNING).reason) == (2, "CreatingPods")


def test_an_evicted_pod_is_disrupted_although_its_container_ended_with_an_error_too():
    cluster = FakeCluster(spec(failurePolicy={"maxRestarts": 0})).start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.change(cluster.pod("trainer-a1-0"), disruption=ReasonMessage("Evicted", "low on memory"))
    cluster.step()
    assert (cluster.status.attempt, cluster.status.restarts, cluster.status.disruptions) == (2, 0, 1)
