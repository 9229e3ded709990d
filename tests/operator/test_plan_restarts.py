"""The attempt that follows a failure: when it starts, after how long a pause, and when there is none."""

from datetime import timedelta

import pytest

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.observed import Refusal

from .fake_world import FakeWorld, report, spec, termination


def two_nodes(max_restarts: int = 3) -> FakeWorld:
    return FakeWorld(spec(trainer={"numNodes": 2}, failurePolicy={"maxRestarts": max_restarts})).start()


def test_a_failed_trainer_restarts_the_whole_gang():
    world = two_nodes()
    world.end(world.pod("trainer-a1-1"), termination(1, reason="OOMKilled"))
    world.step()
    assert (world.status.attempt, world.status.restarts, world.status.phase) == (2, 1, Phase.RESTARTING)
    assert world.names("trainer", is_deleting=True) == ["trainer-a1-0"]
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i0"]


def test_the_next_attempt_waits_until_every_older_pod_is_gone():
    world = two_nodes()
    world.end(world.pod("trainer-a1-1"), termination(1, reason="OOMKilled"))
    world.settle()
    assert not [name for name in world.names("trainer") if "-a2-" in name]
    assert "must end first" in world.condition(ConditionType.RUNNING).message
    world.vanish_deleted()
    world.step()
    assert world.condition(ConditionType.RUNNING).reason == "CreatingPods"  # nothing is waited for any more
    world.settle()
    assert [name for name in world.names("trainer") if "-a2-" in name] == ["trainer-a2-0", "trainer-a2-1"]


def test_an_ended_pod_stays_for_its_logs_until_the_next_attempt_is_over():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.settle()
    assert world.names("trainer") == ["trainer-a1-0", "trainer-a2-0"]
    world.run_all()
    world.settle()
    world.end(world.pod("trainer-a2-0"), termination(1, "boom"))
    world.settle()
    assert world.names("trainer", is_deleting=True) == ["trainer-a1-0"]


def test_restarts_end_at_max_restarts_with_the_cause_in_the_sentence():
    world = FakeWorld(spec(failurePolicy={"maxRestarts": 1})).start()
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.settle()
    world.run_all()
    world.end(world.pod("trainer-a2-0"), termination(75, "flaky network"))
    world.settle()
    assert (world.status.phase, world.status.attempt, world.status.restarts) == (Phase.FAILED, 2, 1)
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == "TransientError"
    assert "maxRestarts (1)" in failed.message and "flaky network" in failed.message


def test_attempts_that_fail_quickly_are_spaced_out():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.settle()
    world.run_all()
    world.settle()
    world.end(world.pod("trainer-a2-0"), termination(1, "boom"))
    plan = world.step()
    assert plan.requeue_after == 5.0
    assert "trainer-a3-0" not in world.names("trainer")
    world.now += timedelta(seconds=5)
    world.step()
    assert "trainer-a3-0" in world.names("trainer")


def test_the_pause_runs_from_the_newest_failure_also_of_an_attempt_that_never_ran():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.settle()
    world.now += timedelta(seconds=50)
    world.end(world.pod("trainer-a2-0"), termination(1, "boom"))
    plan = world.step()
    restarting = world.condition(ConditionType.RESTARTING)
    assert restarting.last_transition_time == world.now and "attempt 3" in restarting.message
    assert (plan.requeue_after, world.names("trainer", is_deleting=True)) == (5.0, ["trainer-a1-0"])
    assert "trainer-a3-0" not in world.names("trainer")


@pytest.mark.parametrize(
    ("seconds", "checkpoint_step", "has_pause"),
    [(0, None, True), (299, None, True), (300, None, False), (0, 3, False)],
    ids=["at once", "soon", "after a long life", "after a checkpoint"],
)
def test_an_attempt_that_made_progress_resets_the_consecutive_failures(
    seconds: int, checkpoint_step: int | None, has_pause: bool
):
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.settle()
    world.run_all()
    world.settle()
    world.now += timedelta(seconds=seconds)
    world.progress = report(attempt=2, policy_version="2.4", checkpoint_step=checkpoint_step)
    world.settle()
    world.end(world.pod("trainer-a2-0"), termination(1, "boom"))
    world.step()
    assert ("trainer-a3-0" not in world.names("trainer")) is has_pause


def test_a_restarted_operator_takes_all_earlier_failures_for_consecutive_ones():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.settle()
    world.run_all()
    world.settle()
    world.now += timedelta(seconds=1)
    world.progress = report(attempt=2, policy_version="2.4", checkpoint_step=4)
    world.settle()
    world.history = None  # what the operator knew before: attempt 2 has made progress
    world.end(world.pod("trainer-a2-0"), termination(1, "boom"))
    world.step()
    assert "trainer-a3-0" not in world.names("trainer")


def test_a_restart_is_over_when_the_new_gang_runs():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.settle()
    world.run_all()
    world.settle()
    assert world.condition(ConditionType.RESTARTING).status == "False"
    assert world.status.phase == Phase.RUNNING


def test_no_engine_is_current_while_no_trainer_runs():
    world = FakeWorld().start()
    world.progress = report()
    world.settle()
    assert world.status.rollout.current == 2
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.settle()
    assert world.status.rollout.current == 0


def test_reports_of_an_earlier_attempt_are_ignored():
    world = FakeWorld().start()
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.settle()
    world.run_all()
    world.progress = report(step=9)
    world.settle()
    assert world.status.step == 0


def test_why_a_pod_of_the_attempt_before_was_refused_is_not_said_of_the_next():
    world = FakeWorld(spec(trainer={"numNodes": 2}))
    world.step()
    world.vanish(world.pod("trainer-a1-1"))
    world.refusal = Refusal(world.pod("trainer-a1-1"), ReasonMessage("QuotaExceeded", "does not fit"))
    world.status = world.plan().status
    assert world.condition(ConditionType.RUNNING).reason == "QuotaExceeded"
    world.refusal = None
    world.end(world.pod("trainer-a1-0"), termination(1, reason="OOMKilled"))
    world.status = world.plan().status
    assert (world.status.attempt, world.condition(ConditionType.RUNNING).reason) == (2, "CreatingPods")


def test_an_evicted_pod_is_disrupted_although_its_container_ended_with_an_error_too():
    world = FakeWorld(spec(failurePolicy={"maxRestarts": 0})).start()
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.change(world.pod("trainer-a1-0"), disruption=ReasonMessage("Evicted", "low on memory"))
    world.step()
    assert (world.status.attempt, world.status.restarts, world.status.disruptions) == (2, 0, 1)
