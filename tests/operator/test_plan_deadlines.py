"""Attempts that never begin, and trainers whose heart stops."""

from dataclasses import replace
from datetime import timedelta

import pytest

from grpo_api.contract.progress import EngineCounts, TrainerState
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observed import Signs, Trouble

from .fake_world import NOW, FakeWorld, ending, report, spec

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
    world.change(world.pod("trainer-a1-0"), trouble=Trouble("ErrImagePull", "pull access denied"))
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
        world.pod("rollout-1-i0"), is_ready=False, trouble=Trouble("Unschedulable", "Insufficient memory")
    )
    world.progress = report(**WAITING, message="waits for engines")
    world.settle()
    later(world, 100)
    world.settle()
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == "StartupDeadlineExceeded" and "Insufficient memory" in failed.message
    failure = world.status.last_failure
    assert failure is not None and (failure.role, failure.pod) == ("rollout", world.pod("rollout-1-i0"))


def test_engines_that_never_get_ready_without_a_word_are_named():
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


def test_a_trainer_that_stays_in_its_start_fails_the_job_with_its_own_words():
    world = short().start()
    age_pods(world)
    world.progress = report(**WAITING | {"state": TrainerState.STARTING}, message="loads the model")
    world.settle()
    later(world, 100)
    world.settle()
    assert "loads the model" in world.condition(ConditionType.FAILED).message


@pytest.mark.parametrize(
    "told",
    [
        report(step=0, policy_version="1.0"),
        report(state=TrainerState.WAITING_FOR_ROLLOUT, step=1, policy_version="1.1"),
        report(state=TrainerState.DONE, step=10),
    ],
    ids=["in its first step", "waiting after a step", "done"],
)
def test_a_trainer_that_has_begun_is_not_held_to_the_deadline(told):
    world = short().start()
    age_pods(world)
    world.progress = told
    later(world, 1000)
    world.settle()
    assert world.status.phase == Phase.RUNNING


def test_an_attempt_that_loses_its_engine_in_its_first_step_had_begun_all_the_same():
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
    world.end(world.pod("trainer-a1-0"), ending(1, "boom"))
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


def test_a_trainer_nobody_can_reach_is_not_held_to_the_deadline():
    world = short().start()
    age_pods(world)
    world.complaint = Trouble("ProgressUnreachable", "the trainer has not answered")
    later(world, 1000)
    world.settle()
    ready = world.condition(ConditionType.READY)
    assert (world.status.phase, ready.reason) == (Phase.RUNNING, "ProgressUnreachable")


def test_an_operator_that_was_away_makes_the_pods_before_it_judges():
    world = short()
    world.step()
    world.vanish(*list(world.pods))  # it was killed before it made them
    later(world, 1000)
    world.step()
    assert (world.status.phase, world.names("trainer")) == (Phase.PENDING, ["trainer-a1-0"])


def test_pods_that_are_refused_until_the_deadline_fail_the_job_with_the_refusal():
    world = short()
    world.status = world.plan().status
    world.refusal = Trouble("QuotaExceeded", "Pod copy-x does not fit into the namespace's quota")
    world.status = world.plan().status
    later(world, 100)
    world.status = world.plan().status
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == "StartupDeadlineExceeded" and "QuotaExceeded" in failed.message
    assert world.status.last_failure is not None
    assert world.status.last_failure.reason == "QuotaExceeded"


def test_the_deadline_is_woken_up_for():
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


def stalled(seconds: float, **changes: object) -> FakeWorld:
    """A trainer that still answers but has said the same for so long."""
    world = FakeWorld(spec(stallTimeoutSeconds=60, **changes)).start()
    world.progress = report(message="generating")
    world.settle()
    later(world, seconds)
    world.signs = Signs(changed_at=NOW, heard_at=world.now)
    return world


def test_a_trainer_whose_heart_stopped_ends_its_attempt_and_is_counted():
    world = stalled(60)
    world.step()
    assert (world.status.attempt, world.status.restarts) == (2, 1)
    failure = world.status.last_failure
    assert failure is not None and failure.reason == "TrainerStalled"
    for part in ("for 60 s", "2026-11-21T12:00:00Z", "step 4 of 10", "Training: generating"):
        assert part in failure.message
    assert world.names("trainer", is_deleting=True) == ["trainer-a1-0"]


def test_stalls_end_at_max_restarts():
    world = stalled(60, failurePolicy={"maxRestarts": 0})
    world.step()
    assert world.condition(ConditionType.FAILED).reason == "TrainerStalled"


def test_a_trainer_that_stirs_is_woken_up_for_and_left_alone():
    world = stalled(59)
    plan = world.step()
    assert (world.status.attempt, plan.requeue_after) == (1, 5.0)


def test_silence_is_not_a_stall():
    world = stalled(1000)
    world.signs = Signs(changed_at=NOW, heard_at=NOW + timedelta(seconds=2))
    world.step()
    assert world.status.attempt == 1


@pytest.mark.parametrize("state", [TrainerState.STARTING, TrainerState.WAITING_FOR_ROLLOUT])
def test_a_long_start_is_not_a_stall(state: TrainerState):
    world = stalled(1000)
    world.progress = report(state=state, step=0)
    world.step()
    assert world.status.attempt == 1


def test_a_trainer_that_ended_is_explained_by_how_it_ended_and_not_as_stalled():
    world = stalled(60)
    world.end(world.pod("trainer-a1-0"), ending(137, reason="OOMKilled"))
    world.step()
    assert world.status.last_failure is not None
    assert world.status.last_failure.reason == "OOMKilled"


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
