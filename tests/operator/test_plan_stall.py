"""Trainers that answer but whose heartbeat has stopped."""

from datetime import timedelta

import pytest

from grpo_api.contract.progress import TrainerState
from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.observe.observed import Liveness

from .fake_world import NOW, FakeWorld, report, spec, termination


def later(world: FakeWorld, seconds: float) -> None:
    world.now = NOW + timedelta(seconds=seconds)


def stalled(seconds: float, **changes: object) -> FakeWorld:
    """A trainer that still answers but has said the same for so long."""
    world = FakeWorld(spec(stallTimeoutSeconds=60, **changes)).start()
    world.progress = report(message="generating")
    world.settle()
    later(world, seconds)
    world.liveness = Liveness(changed_at=NOW, answered_at=world.now)
    return world


def test_a_trainer_whose_heartbeat_stops_ends_its_attempt_and_is_counted():
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


def test_a_trainer_with_a_heartbeat_is_left_alone_until_it_could_count_as_stalled():
    world = stalled(59)
    plan = world.step()
    assert (world.status.attempt, plan.requeue_after) == (1, 5.0)


def test_a_trainer_that_does_not_answer_is_not_stalled():
    world = stalled(1000)
    world.liveness = Liveness(changed_at=NOW, answered_at=NOW + timedelta(seconds=2))
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
    world.end(world.pod("trainer-a1-0"), termination(137, reason="OOMKilled"))
    world.step()
    assert world.status.last_failure is not None
    assert world.status.last_failure.reason == "OOMKilled"


def test_the_stall_timeout_and_the_number_of_restarts_may_change_while_a_job_runs():
    world = stalled(60, failurePolicy={"maxRestarts": 0})
    frozen = world.spec
    world.spec, world.generation = spec(stallTimeoutSeconds=61, failurePolicy={"maxRestarts": 1}), 2
    world.frozen_spec = frozen
    world.step()
    assert (world.status.attempt, world.status.observed_generation) == (1, 2)
    later(world, 61)
    world.liveness = Liveness(changed_at=NOW, answered_at=world.now)
    world.step()
    assert (world.status.attempt, world.status.restarts) == (2, 1)
