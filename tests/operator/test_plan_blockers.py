"""What blocks an attempt without ending it is in status.lastFailure as in the condition."""

from datetime import timedelta

import pytest

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, LastFailure
from grpo_operator.observe.observed import Refusal
from grpo_operator.plan.policies.record_blocker import PATIENCE_SECONDS

from .fake_world import NOW, FakeWorld, spec, termination, termination_message

NO_GPU = ReasonMessage("Unschedulable", "no node has enough nvidia.com/gpu free: lower trainer.resources")


def failure(world: FakeWorld) -> LastFailure:
    assert world.status.last_failure is not None
    return world.status.last_failure


def unschedulable() -> FakeWorld:
    world = FakeWorld()
    world.settle()
    world.change(world.pod("trainer-a1-0"), start_problem=NO_GPU, created_at=world.now)
    return world


def test_a_pod_that_does_not_start_is_the_last_failure_after_a_few_seconds():
    world = unschedulable()
    plan = world.step()
    assert world.condition(ConditionType.RUNNING).reason == "Unschedulable"
    assert (world.status.last_failure, plan.requeue_after) == (None, PATIENCE_SECONDS)
    world.now += timedelta(seconds=PATIENCE_SECONDS)
    world.settle()
    found = failure(world)
    assert (found.role, found.pod, found.attempt) == ("trainer", world.pod("trainer-a1-0"), 1)
    assert (found.reason, found.message, found.exit_code) == (NO_GPU.reason, NO_GPU.message, None)
    assert (world.status.attempt, world.status.restarts) == (1, 0)


def test_a_blocker_that_is_overcome_stays_the_last_failure():
    world = unschedulable()
    world.now += timedelta(seconds=PATIENCE_SECONDS)
    world.settle()
    world.change(world.pod("trainer-a1-0"), start_problem=None)
    world.run_all()
    world.settle()
    assert world.condition(ConditionType.RUNNING).status == "True"
    assert failure(world).reason == "Unschedulable"


@pytest.mark.parametrize(("suffix", "role"), [("trainer-a1-0", "trainer"), ("rollout-1-i0", "rollout")])
def test_a_refused_pod_is_the_last_failure_although_it_never_existed(suffix: str, role: str):
    world = FakeWorld()
    (planned,) = [child.name for child in world.plan().create if child.name.endswith(suffix)]
    world.refusal = Refusal(planned, ReasonMessage("QuotaExceeded", "does not fit"))
    world.step()
    found = failure(world)
    assert (found.role, found.pod, found.reason) == (role, planned, "QuotaExceeded")


def test_a_refusal_of_a_child_that_is_no_longer_wanted_is_not_recorded():
    world = FakeWorld().start()
    world.refusal = Refusal("gone", ReasonMessage("QuotaExceeded", "does not fit"))
    world.settle()
    assert world.status.last_failure is None


def test_an_engine_that_keeps_ending_is_the_last_failure_with_its_exit_code():
    world = FakeWorld().start()
    world.change(
        world.pod("rollout-1-i0"),
        last_termination=termination(137, reason="OOMKilled"),
        restarts=2,
        is_ready=False,
    )
    world.settle()
    found = failure(world)
    assert (found.role, found.pod, found.reason, found.exit_code) == (
        "rollout",
        world.pod("rollout-1-i0"),
        "OOMKilled",
        137,
    )
    assert "restarted 2 times" in found.message
    assert (world.status.attempt, world.status.restarts) == (1, 0)


def test_an_engine_that_ended_before_does_not_hide_why_the_trainer_did():
    world = FakeWorld().start()
    world.change(
        world.pod("rollout-1-i0"), last_termination=termination(1, "flake"), restarts=1, is_ready=False
    )
    world.now += timedelta(seconds=60)
    world.end(
        world.pod("trainer-a1-0"), termination(1, termination_message(1, "UnexpectedError", "the cause"))
    )
    world.settle()
    assert world.condition(ConditionType.RESTARTING).status == "True"
    assert (failure(world).role, failure(world).message) == ("trainer", "the cause")
    world.change(world.pod("trainer-a2-0"), created_at=world.now)
    world.run_all()
    world.settle()
    assert world.condition(ConditionType.RESTARTING).status == "False"
    assert (failure(world).role, failure(world).message) == ("trainer", "the cause")


def test_an_engine_that_ended_while_the_attempt_started_is_recorded_once_the_attempt_runs():
    world = FakeWorld().start()
    world.end(
        world.pod("trainer-a1-0"), termination(1, termination_message(1, "UnexpectedError", "the cause"))
    )
    world.settle()
    world.change(world.pod("trainer-a2-0"), created_at=world.now)
    world.now += timedelta(seconds=60)
    world.run_all()
    world.settle()
    assert world.condition(ConditionType.RESTARTING).last_transition_time == world.now
    world.change(
        world.pod("rollout-1-i0"),
        last_termination=termination(1, "flake", after=59),
        restarts=1,
        is_ready=False,
    )
    world.settle()
    assert (failure(world).role, failure(world).attempt) == ("rollout", 2)


def test_an_engine_that_ended_hours_ago_and_waits_to_be_admitted_again_blocks_nothing():
    world = FakeWorld().start()
    engine = world.pod("rollout-1-i0")
    oom = termination(137, reason="OOMKilled")
    world.change(
        engine, last_termination=oom, restarts=1, is_ready=False, unready_since=NOW + timedelta(hours=5)
    )
    world.settle()
    assert world.status.last_failure is None
    assert world.condition(ConditionType.ROLLOUT_READY).reason == "EnginesStarting"
    world.change(engine, unready_since=NOW + timedelta(seconds=2))  # not ready since it ended
    world.settle()
    assert failure(world).reason == "OOMKilled"
    assert world.condition(ConditionType.ROLLOUT_READY).reason == "OOMKilled"


def test_an_engine_that_its_node_refused_is_recorded_at_once():
    world = FakeWorld().start()
    refused = ReasonMessage("OutOfcpu", "Node didn't have enough resource: cpu")
    world.change(
        world.pod("rollout-1-i0"), phase="Failed", is_ready=False, start_problem=refused, created_at=world.now
    )
    world.step()
    assert failure(world).reason == "OutOfcpu"


def test_that_a_job_is_newer_than_its_operator_is_its_last_failure():
    world = FakeWorld(problem='spec.foo: unknown field "spec.foo"')
    world.is_skewed = True
    world.settle()
    found = failure(world)
    assert (found.reason, found.pod, found.role) == ("SchemaSkew", "", "")
    assert "spec.foo" in found.message


def test_a_trainer_pod_that_does_not_start_comes_before_an_engine_that_does_not_start():
    world = FakeWorld()
    world.settle()
    for name in ("trainer-a1-0", "rollout-0-i0"):
        world.change(world.pod(name), start_problem=NO_GPU, created_at=world.now)
    world.now += timedelta(seconds=PATIENCE_SECONDS)
    world.settle()
    assert failure(world).role == "trainer"


def test_what_a_new_attempt_waits_for_does_not_hide_why_it_is_made():
    world = FakeWorld(spec(trainer={"numNodes": 2})).start()
    world.end(world.pod("trainer-a1-0"), termination(137, reason="OOMKilled"))
    world.settle()
    engine = world.pod("rollout-1-i0")
    world.now += timedelta(seconds=60)
    world.change(engine, last_termination=termination(1, "flake", after=30), restarts=1, is_ready=False)
    world.settle()
    assert "must end first" in world.condition(ConditionType.RUNNING).message
    assert failure(world).reason == "OOMKilled"
