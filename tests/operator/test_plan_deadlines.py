"""Attempts that never begin."""

from dataclasses import replace
from datetime import timedelta

import pytest

from grpo_api.contract.progress import EngineCounts, TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.observed import Refusal

from .fake_world import NOW, FakeWorld, report, spec, termination

WAITING = {"state": TrainerState.WAITING_FOR_ROLLOUT, "step": 0, "policy_version": "1.0"}


def later(world: FakeWorld, seconds: float) -> None:
    world.now = NOW + timedelta(seconds=seconds)


def short(**changes: object) -> FakeWorld:
    return FakeWorld(spec(startupDeadlineSeconds=100, **changes))


def age_pods(world: FakeWorld) -> None:
    """The API server dates pods when they are made."""
    for name, pod in world.pods.items():
        world.pods[name] = replace(pod, created_at=pod.created_at or world.now)


def test_trainer_pods_that_do_not_run_in_time_fail_the_job_with_what_held_them_up():
    world = short()
    world.settle()
    age_pods(world)
    world.change(world.pod("trainer-a1-0"), start_problem=ReasonMessage("ErrImagePull", "pull access denied"))
    later(world, 99)
    world.settle()
    assert world.condition(ConditionType.FINISHED).status == "False"
    later(world, 100)
    world.settle()
    failed = world.condition(ConditionType.FAILED)
    assert (world.status.phase, failed.reason) == (Phase.FAILED, "StartupDeadlineExceeded")
    assert "startupDeadlineSeconds (100)" in failed.message
    assert "ErrImagePull" in failed.message and "pull access denied" in failed.message
    failure = world.status.last_failure
    assert failure is not None
    assert (failure.reason, failure.pod) == ("ErrImagePull", world.pod("trainer-a1-0"))


def test_a_trainer_without_engines_in_time_fails_the_job_with_what_is_wrong_with_them():
    world = short().start()
    age_pods(world)
    world.change(
        world.pod("rollout-1-i0"),
        is_ready=False,
        start_problem=ReasonMessage("Unschedulable", "Insufficient memory"),
    )
    world.progress = report(**WAITING, message="waits for engines")
    world.settle()
    later(world, 100)
    world.settle()
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == "StartupDeadlineExceeded" and "Insufficient memory" in failed.message
    failure = world.status.last_failure
    assert failure is not None and (failure.role, failure.pod) == ("rollout", world.pod("rollout-1-i0"))


def test_engines_that_never_get_ready_and_give_no_reason_are_named():
    world = short().start()
    age_pods(world)
    world.change(world.pod("rollout-1-i0"), is_ready=False, node="node-b")
    world.progress = report(**WAITING, message="waits for engines")
    world.settle()
    later(world, 100)
    world.settle()
    failure = world.status.last_failure
    assert failure is not None and failure.reason == "EnginesStarting"
    assert (failure.role, failure.pod, failure.node) == ("rollout", world.pod("rollout-1-i0"), "node-b")


def test_a_trainer_that_never_finishes_starting_fails_the_job_with_its_own_message():
    world = short().start()
    age_pods(world)
    world.progress = report(**WAITING | {"state": TrainerState.STARTING}, message="loads the model")
    world.settle()
    later(world, 100)
    world.settle()
    assert "loads the model" in world.condition(ConditionType.FAILED).message


@pytest.mark.parametrize(
    "progress",
    [
        report(step=0, policy_version="1.0"),
        report(state=TrainerState.WAITING_FOR_ROLLOUT, step=1, policy_version="1.1"),
        report(state=TrainerState.DONE, step=10),
    ],
    ids=["in its first step", "waiting after a step", "done"],
)
def test_a_trainer_that_has_begun_is_not_held_to_the_deadline(progress):
    world = short().start()
    age_pods(world)
    world.progress = progress
    later(world, 1000)
    world.settle()
    assert world.status.phase == Phase.RUNNING


def test_an_attempt_that_loses_its_engine_in_its_first_step_has_begun():
    world = short().start()
    age_pods(world)
    later(world, 50)
    world.progress = report(step=0, policy_version="1.0")
    world.settle()
    later(world, 150)
    world.progress = report(**WAITING, message="waits for engines")
    world.settle()
    later(world, 1000)
    world.settle()
    ready = world.condition(ConditionType.READY)
    assert (world.status.phase, ready.reason) == (Phase.RUNNING, "WaitingForRollout")


def test_that_an_earlier_attempt_had_begun_does_not_excuse_the_next():
    world = short().start()
    age_pods(world)
    later(world, 50)
    world.progress = report(step=0, policy_version="1.0")
    world.settle()
    later(world, 60)
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.step()
    world.vanish_deleted()
    world.settle()
    age_pods(world)
    later(world, 70)
    world.run_all()
    world.progress = report(**WAITING | {"policy_version": "2.0"}, attempt=2, message="waits for engines")
    world.settle()
    assert (world.status.phase, world.status.attempt) == (Phase.RUNNING, 2)
    later(world, 160)
    world.settle()
    assert world.condition(ConditionType.FAILED).reason == "StartupDeadlineExceeded"


def test_a_resumed_attempt_has_begun_when_it_made_a_step_of_its_own():
    world = short().start()
    age_pods(world)
    waiting = {**WAITING, "step": 7, "policy_version": "1.7", "resumed_from_step": 7}
    world.progress = report(**waiting)
    world.settle()
    later(world, 100)
    world.settle()
    assert world.status.phase == Phase.FAILED


def test_a_trainer_that_waited_for_engines_and_cannot_be_reached_any_more_is_not_held_to_the_deadline():
    world = short().start()
    age_pods(world)
    world.progress = report(**WAITING, message="waits for engines")
    world.settle()
    world.report_problem = ReasonMessage("ProgressUnreachable", "the trainer has not answered")
    later(world, 1000)
    world.settle()
    ready = world.condition(ConditionType.READY)
    assert (world.status.phase, ready.reason) == (Phase.RUNNING, "ProgressUnreachable")
    world.report_problem = None  # it answers again, and waits as before
    world.settle()
    assert world.condition(ConditionType.FAILED).reason == "StartupDeadlineExceeded"


def test_a_trainer_that_never_answered_is_not_held_to_the_deadline():
    world = short().start()
    age_pods(world)
    world.report_problem = ReasonMessage("ProgressUnreachable", "the trainer has not answered")
    later(world, 1000)
    world.settle()
    ready = world.condition(ConditionType.READY)
    assert (world.status.phase, ready.reason) == (Phase.RUNNING, "ProgressUnreachable")


def test_an_operator_that_was_away_creates_the_pods_before_it_gives_the_job_up():
    world = short()
    world.step()
    world.vanish(*list(world.pods))  # it was killed before it made them
    later(world, 1000)
    world.step()
    assert (world.status.phase, world.names("trainer")) == (Phase.PENDING, ["trainer-a1-0"])


def test_pods_that_are_refused_until_the_deadline_fail_the_job_with_the_refusal():
    world = short()
    world.status = world.plan().status
    why = ReasonMessage("QuotaExceeded", "Pod copy-x does not fit into the namespace's quota")
    world.refusal = Refusal("copy-x", why)
    world.status = world.plan().status
    later(world, 100)
    plan = world.plan()
    assert plan.create == ()  # a job that ends gets no pods with its end
    world.status = plan.status
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == "StartupDeadlineExceeded" and "QuotaExceeded" in failed.message
    assert world.status.last_failure is not None
    assert world.status.last_failure.reason == "QuotaExceeded"


def test_the_deadline_runs_from_the_first_pod_of_the_attempt():
    world = short(trainer={"numNodes": 2})
    world.settle()
    world.change(world.pod("trainer-a1-0"), created_at=NOW)
    world.change(world.pod("trainer-a1-1"), created_at=NOW + timedelta(seconds=50))
    later(world, 99)
    world.settle()
    assert world.condition(ConditionType.FINISHED).status == "False"
    later(world, 100)
    world.settle()
    assert world.condition(ConditionType.FAILED).reason == "StartupDeadlineExceeded"


def test_an_attempt_that_waits_for_a_lost_node_has_its_deadline_from_the_decision_for_it():
    world = short(trainer={"numNodes": 2}).start()
    age_pods(world)
    world.progress = report()
    world.settle()
    later(world, 500)
    world.end(world.pod("trainer-a1-0"), termination(1, reason="OOMKilled"))
    world.settle()
    assert world.names("trainer", is_deleting=True) == ["trainer-a1-1"]
    later(world, 599)
    world.settle()
    assert (world.status.attempt, world.condition(ConditionType.FINISHED).status) == (2, "False")
    later(world, 600)
    world.settle()
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == "StartupDeadlineExceeded" and "must end first" in failed.message


def test_the_job_is_planned_again_at_its_deadline():
    world = short()
    world.settle()
    later(world, 40)
    assert world.plan().requeue_after == 60.0


def test_both_deadlines_may_change_while_a_job_runs():
    world = short()
    world.settle()
    world.spec, world.generation = spec(startupDeadlineSeconds=50), 2
    world.frozen_spec = spec(startupDeadlineSeconds=100)
    age_pods(world)
    later(world, 50)
    world.settle()
    assert world.condition(ConditionType.FAILED).reason == "StartupDeadlineExceeded"


def test_an_engine_fleet_that_is_fully_lost_later_is_not_a_slow_start():
    world = short().start()
    age_pods(world)
    world.progress = report(step=3, policy_version="1.3")
    world.settle()
    lost = {"state": TrainerState.WAITING_FOR_ROLLOUT, "engines": EngineCounts(desired=2)}
    world.progress = report(**lost)
    later(world, 1000)
    world.settle()
    assert world.status.phase == Phase.RUNNING
