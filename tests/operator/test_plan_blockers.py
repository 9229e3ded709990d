"""What blocks an attempt without ending it is in status.lastFailure as in the condition."""

from datetime import timedelta

import pytest

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, LastFailure
from grpo_operator.observe.observed import Refusal
from grpo_operator.plan.blockers import UNSEEN_SECONDS
from grpo_operator.plan.policies.record_blocker import PATIENCE_SECONDS

from .fake_cluster import NOW, FakeCluster, spec, termination, termination_message

NO_GPU = ReasonMessage("Unschedulable", "no node has enough nvidia.com/gpu free: lower trainer.resources")


def failure(cluster: FakeCluster) -> LastFailure:
    assert cluster.status.last_failure is not None
    return cluster.status.last_failure


def unschedulable() -> FakeCluster:
    cluster = FakeCluster()
    cluster.settle()
    cluster.change(cluster.pod("trainer-a1-0"), start_problem=NO_GPU, created_at=cluster.now)
    return cluster


def test_a_pod_that_does_not_start_is_the_last_failure_after_a_few_seconds():
    cluster = unschedulable()
    plan = cluster.step()
    assert cluster.condition(ConditionType.RUNNING).reason == "Unschedulable"
    assert (cluster.status.last_failure, plan.requeue_after) == (None, PATIENCE_SECONDS)
    cluster.now += timedelta(seconds=PATIENCE_SECONDS)
    cluster.settle()
    found = failure(cluster)
    assert (found.role, found.pod, found.attempt) == ("trainer", cluster.pod("trainer-a1-0"), 1)
    assert (found.reason, found.message, found.exit_code) == (NO_GPU.reason, NO_GPU.message, None)
    assert (cluster.status.attempt, cluster.status.restarts) == (1, 0)


def test_of_a_group_the_pod_that_finds_no_node_is_told_and_not_those_that_wait_for_it():
    cluster = FakeCluster(spec(trainer={"numNodes": 3}))
    cluster.has_room = False
    cluster.settle()
    waits = ReasonMessage("WaitingForGroup", "one of the others finds no node")
    for index, why in enumerate((waits, NO_GPU, waits)):
        cluster.change(cluster.pod(f"trainer-a1-{index}"), start_problem=why)
    cluster.settle()
    running = cluster.condition(ConditionType.RUNNING)
    assert (running.reason, cluster.pod("trainer-a1-1") in running.message) == ("Unschedulable", True)
    cluster.change(cluster.pod("trainer-a1-1"), start_problem=waits)
    cluster.settle()
    assert cluster.condition(ConditionType.RUNNING).reason == "WaitingForGroup"


@pytest.mark.parametrize(
    ("suffix", "scheduler", "condition", "fix"),
    [
        ("trainer-a1-0", "nope", ConditionType.RUNNING, "trainer.podTemplate.spec.schedulerName"),
        ("rollout-1-i0", "nope", ConditionType.ROLLOUT_READY, "rollout.podTemplate.spec.schedulerName"),
        ("trainer-a1-0", "default-scheduler", ConditionType.RUNNING, "(default-scheduler) is down"),
    ],
)
def test_a_pod_that_no_scheduler_looks_at_is_told_after_half_a_minute(
    suffix: str, scheduler: str, condition: ConditionType, fix: str
):
    cluster = FakeCluster()
    cluster.settle()
    cluster.unbind(name := cluster.pod(suffix))
    cluster.change(name, unseen_by=scheduler, created_at=cluster.now)
    plan = cluster.step()
    assert cluster.condition(condition).reason in ("PodsStarting", "EnginesStarting")
    assert plan.requeue_after == UNSEEN_SECONDS
    cluster.now += timedelta(seconds=UNSEEN_SECONDS)
    cluster.settle()
    told, found = cluster.condition(condition), failure(cluster)
    assert (told.reason, found.reason, found.pod) == ("NoScheduler", "NoScheduler", name)
    assert name in told.message and f"no scheduler named {scheduler}" in told.message and fix in told.message


def test_a_blocker_that_is_overcome_stays_the_last_failure():
    cluster = unschedulable()
    cluster.now += timedelta(seconds=PATIENCE_SECONDS)
    cluster.settle()
    cluster.change(cluster.pod("trainer-a1-0"), start_problem=None)
    cluster.run_all()
    cluster.settle()
    assert cluster.condition(ConditionType.RUNNING).status == "True"
    assert failure(cluster).reason == "Unschedulable"


@pytest.mark.parametrize(("suffix", "role"), [("trainer-a1-0", "trainer"), ("rollout-1-i0", "rollout")])
def test_a_refused_pod_is_the_last_failure_although_it_never_existed(suffix: str, role: str):
    cluster = FakeCluster()
    if role == "rollout":
        cluster.step()
    plan = cluster.plan()
    (planned,) = [child.name for child in plan.create if child.name.endswith(suffix)]
    cluster.refusal = Refusal(planned, ReasonMessage("QuotaExceeded", "does not fit"))
    cluster.step()
    found = failure(cluster)
    assert (found.role, found.pod, found.reason) == (role, planned, "QuotaExceeded")


def test_a_refusal_of_a_child_that_is_no_longer_wanted_is_not_recorded():
    cluster = FakeCluster().start()
    cluster.refusal = Refusal("gone", ReasonMessage("QuotaExceeded", "does not fit"))
    cluster.settle()
    assert cluster.status.last_failure is None


def test_an_engine_that_keeps_ending_is_the_last_failure_with_its_exit_code():
    cluster = FakeCluster().start()
    cluster.change(
        cluster.pod("rollout-1-i0"),
        last_termination=termination(137, reason="OOMKilled"),
        restarts=2,
        is_ready=False,
    )
    cluster.settle()
    found = failure(cluster)
    assert (found.role, found.pod, found.reason, found.exit_code) == (
        "rollout",
        cluster.pod("rollout-1-i0"),
        "OOMKilled",
        137,
    )
    assert "restarted 2 times" in found.message
    assert (cluster.status.attempt, cluster.status.restarts) == (1, 0)


def test_an_engine_that_ended_before_does_not_hide_why_the_trainer_did():
    cluster = FakeCluster().start()
    cluster.change(
        cluster.pod("rollout-1-i0"), last_termination=termination(1, "flake"), restarts=1, is_ready=False
    )
    cluster.now += timedelta(seconds=60)
    cluster.end(
        cluster.pod("trainer-a1-0"), termination(1, termination_message(1, "UnexpectedError", "the cause"))
    )
    cluster.settle()
    assert cluster.condition(ConditionType.RESTARTING).status == "True"
    assert (failure(cluster).role, failure(cluster).message) == ("trainer", "the cause")
    cluster.change(cluster.pod("trainer-a2-0"), created_at=cluster.now)
    cluster.run_all()
    cluster.settle()
    assert cluster.condition(ConditionType.RESTARTING).status == "False"
    assert (failure(cluster).role, failure(cluster).message) == ("trainer", "the cause")


def test_an_engine_that_ended_while_the_attempt_started_is_recorded_once_the_attempt_runs():
    cluster = FakeCluster().start()
    cluster.end(
        cluster.pod("trainer-a1-0"), termination(1, termination_message(1, "UnexpectedError", "the cause"))
    )
    cluster.settle()
    cluster.change(cluster.pod("trainer-a2-0"), created_at=cluster.now)
    cluster.now += timedelta(seconds=60)
    cluster.run_all()
    cluster.settle()
    assert cluster.condition(ConditionType.RESTARTING).last_transition_time == cluster.now
    cluster.change(
        cluster.pod("rollout-1-i0"),
        last_termination=termination(1, "flake", after=59),
        restarts=1,
        is_ready=False,
    )
    cluster.settle()
    assert (failure(cluster).role, failure(cluster).attempt) == ("rollout", 2)


def test_an_engine_that_ended_hours_ago_and_waits_to_be_admitted_again_blocks_nothing():
    cluster = FakeCluster().start()
    engine = cluster.pod("rollout-1-i0")
    oom = termination(137, reason="OOMKilled")
    cluster.change(
        engine, last_termination=oom, restarts=1, is_ready=False, unready_since=NOW + timedelta(hours=5)
    )
    cluster.settle()
    assert cluster.status.last_failure is None
    assert cluster.condition(ConditionType.ROLLOUT_READY).reason == "EnginesStarting"
    cluster.change(engine, unready_since=NOW + timedelta(seconds=2))  # not ready since it ended
    cluster.settle()
    assert failure(cluster).reason == "OOMKilled"
    assert cluster.condition(ConditionType.ROLLOUT_READY).reason == "OOMKilled"


def test_an_engine_that_its_node_refused_is_recorded_at_once():
    cluster = FakeCluster().start()
    cluster.refuse(cluster.pod("rollout-1-i0"))
    cluster.step()
    assert failure(cluster).reason == "OutOfcpu"


def test_that_a_job_is_newer_than_its_operator_is_its_last_failure():
    cluster = FakeCluster(problem='spec.foo: unknown field "spec.foo"')
    cluster.settle()
    found = failure(cluster)
    assert (found.reason, found.pod, found.role) == ("SchemaSkew", "", "")
    assert "spec.foo" in found.message


def test_a_trainer_pod_that_does_not_start_comes_before_an_engine_that_does_not_start():
    cluster = FakeCluster()
    cluster.settle()
    for name in ("trainer-a1-0", "rollout-0-i0"):
        cluster.change(cluster.pod(name), start_problem=NO_GPU, created_at=cluster.now)
    cluster.now += timedelta(seconds=PATIENCE_SECONDS)
    cluster.settle()
    assert failure(cluster).role == "trainer"


def test_what_a_new_attempt_waits_for_does_not_hide_why_it_is_made():
    cluster = FakeCluster(spec(trainer={"numNodes": 2})).start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(137, reason="OOMKilled"))
    cluster.settle()
    engine = cluster.pod("rollout-1-i0")
    cluster.now += timedelta(seconds=60)
    cluster.change(engine, last_termination=termination(1, "flake", after=30), restarts=1, is_ready=False)
    cluster.settle()
    assert "must end first" in cluster.condition(ConditionType.RUNNING).message
    assert failure(cluster).reason == "OOMKilled"
