"""Hung engines: their pods are replaced, not too soon and not too often, and the job says why."""

from datetime import timedelta

import pytest

from grpo_api.contract.progress import EngineCounts, HungEngine
from grpo_api.judge.engines import PAUSE_SECONDS, REPLACE_AFTER_SECONDS
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.observed import Liveness
from grpo_operator.plan.draft import Plan

from .fake_cluster import NOW, FakeCluster, report, spec, termination

WHY = "its engine core does not answer"
CAUSE = f"its engine has been hung since 2026-11-21T12:00:00Z: {WHY}"


def hear(cluster: FakeCluster, *engines: str, reported_seconds: float, quiet_seconds: float = 0.0) -> Plan:
    """The trainer names these engines, which it did for the first time so long ago."""
    told = tuple(
        HungEngine(name=cluster.pod(engine), instance=f"of-{engine}", since=NOW, why=WHY)
        for engine in engines
    )
    counts = EngineCounts(desired=2, known=2, current=2 - len(told), hung=told or None)
    cluster.progress = report(attempt=cluster.status.attempt, engines=counts)
    since = cluster.now - timedelta(seconds=reported_seconds)
    cluster.hung_since = {engine.instance: since for engine in told}
    changed_at = cluster.now - timedelta(seconds=quiet_seconds)
    cluster.liveness = Liveness(changed_at=changed_at, answered_at=cluster.now)
    return cluster.step()


def old_enough(job: FakeCluster | None = None) -> FakeCluster:
    """A running job whose pods are older than the pause between two replacements."""
    cluster = (job or FakeCluster()).start()
    cluster.now += timedelta(seconds=PAUSE_SECONDS)
    return cluster


def test_an_engine_that_stands_still_for_five_minutes_is_replaced_and_the_object_says_why():
    cluster = old_enough()
    plan = hear(cluster, "rollout-1-i0", reported_seconds=REPLACE_AFTER_SECONDS)
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]
    assert cluster.names("rollout", is_deleting=True) == ["rollout-1-i0"]
    [event] = [event for event in plan.events if event.is_warning]
    old, new = cluster.pod("rollout-1-i0"), cluster.pod("rollout-1-i1")
    assert event.why.reason == "EngineReplaced"
    assert event.why.message == f"rollout pod {old} is replaced by {new}: {CAUSE}"
    failure = cluster.status.last_failure
    assert failure is not None
    assert (failure.role, failure.pod, failure.reason) == ("rollout", old, "EngineHung")
    assert (failure.container, failure.node, failure.message) == ("engine", "node-a", CAUSE)
    assert (cluster.status.phase, cluster.status.attempt, cluster.status.restarts) == (Phase.RUNNING, 1, 0)


def test_its_successor_says_whose_place_it_takes_until_it_is_ready():
    cluster = old_enough()
    hear(cluster, "rollout-1-i0", reported_seconds=REPLACE_AFTER_SECONDS)
    cluster.vanish_deleted()
    cluster.settle()
    ready = cluster.condition(ConditionType.ROLLOUT_READY)
    old, new = cluster.pod("rollout-1-i0"), cluster.pod("rollout-1-i1")
    place = f"rollout pod {new} is not ready, see its log; it replaces {old}: {CAUSE}"
    assert (ready.status, ready.reason) == ("False", "EnginesStarting")
    assert ready.message == f"1/2 engines have been admitted: {place}"
    cluster.run_all()
    cluster.settle()
    assert cluster.condition(ConditionType.ROLLOUT_READY).status == "True"


def test_until_then_the_condition_names_it_and_the_plan_is_made_again_in_time():
    cluster = old_enough()
    plan = hear(cluster, "rollout-1-i0", reported_seconds=REPLACE_AFTER_SECONDS - 30)
    ready = cluster.condition(ConditionType.ROLLOUT_READY)
    assert (ready.status, ready.reason) == ("False", "EngineHung")
    assert ready.message == f"rollout pod {cluster.pod('rollout-1-i0')}: {CAUSE}"
    assert plan.requeue_after == 30
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]


def test_one_that_goes_on_stays_and_the_condition_is_met_again():
    cluster = old_enough()
    hear(cluster, "rollout-1-i0", reported_seconds=30)
    hear(cluster, reported_seconds=0)
    assert cluster.condition(ConditionType.ROLLOUT_READY).status == "True"
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]
    assert cluster.status.last_failure is None


def test_of_two_that_stand_still_one_is_replaced_and_the_other_after_a_pause():
    cluster = old_enough()
    hear(cluster, "rollout-1-i0", "rollout-0-i0", reported_seconds=REPLACE_AFTER_SECONDS)
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]
    cluster.vanish_deleted()
    plan = hear(cluster, "rollout-0-i0", reported_seconds=REPLACE_AFTER_SECONDS + 60)
    assert (cluster.names("rollout"), plan.requeue_after) == (["rollout-0-i0", "rollout-1-i1"], PAUSE_SECONDS)
    cluster.now += timedelta(seconds=PAUSE_SECONDS)
    hear(cluster, "rollout-0-i0", reported_seconds=REPLACE_AFTER_SECONDS + 60)
    assert cluster.names("rollout") == ["rollout-0-i1", "rollout-1-i1"]


def test_engines_that_always_stand_still_cost_one_start_in_ten_minutes():
    cluster = old_enough()
    for _ in range(60 * 60 // 30):
        cluster.run_all()
        engines = cluster.names("rollout")
        hear(cluster, *engines, reported_seconds=REPLACE_AFTER_SECONDS)
        cluster.vanish_deleted()
        cluster.now += timedelta(seconds=30)
    incarnations = sum(pod.position[1] for pod in cluster.pods.values() if "-rollout-" in pod.name)
    assert incarnations == 6
    assert (cluster.status.phase, cluster.status.restarts) == (Phase.RUNNING, 0)


@pytest.mark.parametrize(
    "happening",
    [
        {"is_deleting": True},
        {"phase": "Pending"},
        {"restarts": 1, "last_termination": termination(137, after=PAUSE_SECONDS)},
    ],
    ids=["deleted", "starting", "restarted by its kubelet since then"],
)
def test_a_pod_that_somebody_else_has_dealt_with_is_left_to_them(happening: dict):
    cluster = old_enough()
    cluster.change(cluster.pod("rollout-1-i0"), **happening)
    hear(cluster, "rollout-1-i0", reported_seconds=REPLACE_AFTER_SECONDS)
    assert cluster.status.last_failure is None
    assert "rollout-1-i0" in cluster.names("rollout", is_deleting="is_deleting" in happening)


def test_a_trainer_that_computes_tells_nothing_of_engines_meanwhile():
    cluster = old_enough()
    plan = hear(cluster, "rollout-1-i0", reported_seconds=REPLACE_AFTER_SECONDS + 60, quiet_seconds=60)
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]
    assert plan.requeue_after == 5


def test_an_operator_that_has_just_started_counts_from_when_it_is_told():
    cluster = old_enough()
    hear(cluster, "rollout-1-i0", reported_seconds=0)
    assert cluster.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]


def test_all_pods_of_an_engine_of_several_are_replaced_together():
    cluster = old_enough(
        FakeCluster(
            spec(
                rollout={"replicas": 1, "nodesPerReplica": 2},
                engine={"pipelineParallelSize": 2},
            )
        )
    )
    hear(cluster, "rollout-0-i0", reported_seconds=REPLACE_AFTER_SECONDS)
    assert cluster.names("rollout") == ["rollout-0-i1", "rollout-0-i1-1"]
    assert cluster.names("rollout", is_deleting=True) == ["rollout-0-i0", "rollout-0-i0-1"]


def test_the_last_engine_is_replaced_too_and_the_job_waits():
    cluster = old_enough(FakeCluster(spec(rollout={"replicas": 1})))
    hear(cluster, "rollout-0-i0", reported_seconds=REPLACE_AFTER_SECONDS)
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.names("rollout") == ["rollout-0-i1"]
    assert (cluster.status.attempt, cluster.status.restarts, cluster.status.disruptions) == (1, 0, 0)
