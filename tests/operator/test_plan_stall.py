"""Trainers that answer but whose heartbeat has stopped."""

from datetime import timedelta

import pytest

from grpo_api.contract.progress import TrainerState
from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.observe.observed import Liveness

from .fake_cluster import NOW, FakeCluster, report, spec, termination


def later(cluster: FakeCluster, seconds: float) -> None:
    cluster.now = NOW + timedelta(seconds=seconds)


def stalled(seconds: float, **changes: object) -> FakeCluster:
    """A trainer that still answers but has said the same for so long."""
    cluster = FakeCluster(spec(stallTimeoutSeconds=60, **changes)).start()
    cluster.progress = report(message="generating")
    cluster.settle()
    later(cluster, seconds)
    cluster.liveness = Liveness(changed_at=NOW, answered_at=cluster.now, quiet_seconds=seconds)
    return cluster


def test_a_trainer_whose_heartbeat_stops_ends_its_attempt_and_is_counted():
    cluster = stalled(60)
    cluster.step()
    assert (cluster.status.attempt, cluster.status.restarts) == (2, 1)
    failure = cluster.status.last_failure
    assert failure is not None and failure.reason == "TrainerStalled"
    for part in ("for 60 s", "2026-11-21T12:00:00Z", "step 4 of 10", "Training: generating"):
        assert part in failure.message
    assert cluster.names("trainer", is_deleting=True) == ["trainer-a1-0"]


def test_stalls_end_at_max_restarts():
    cluster = stalled(60, failurePolicy={"maxRestarts": 0})
    cluster.step()
    assert cluster.condition(ConditionType.FAILED).reason == "TrainerStalled"


def test_a_trainer_with_a_heartbeat_is_left_alone_until_it_could_count_as_stalled():
    cluster = stalled(59)
    plan = cluster.step()
    assert (cluster.status.attempt, plan.requeue_after) == (1, 5.0)


def test_a_trainer_that_does_not_answer_is_not_stalled():
    cluster = stalled(1000)
    cluster.liveness = Liveness(changed_at=NOW, answered_at=NOW + timedelta(seconds=2), quiet_seconds=2)
    cluster.step()
    assert cluster.status.attempt == 1


@pytest.mark.parametrize("state", [TrainerState.STARTING, TrainerState.WAITING_FOR_ROLLOUT])
def test_a_long_start_is_not_a_stall(state: TrainerState):
    cluster = stalled(1000)
    cluster.progress = report(state=state, step=0)
    cluster.step()
    assert cluster.status.attempt == 1


def test_a_trainer_that_ended_is_explained_by_how_it_ended_and_not_as_stalled():
    cluster = stalled(60)
    cluster.end(cluster.pod("trainer-a1-0"), termination(137, reason="OOMKilled"))
    cluster.step()
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.reason == "OOMKilled"


def test_the_stall_timeout_and_the_number_of_restarts_may_change_while_a_job_runs():
    cluster = stalled(60, failurePolicy={"maxRestarts": 0})
    snapshot = cluster.spec
    cluster.spec, cluster.generation = spec(stallTimeoutSeconds=61, failurePolicy={"maxRestarts": 1}), 2
    cluster.stored_spec = snapshot
    cluster.step()
    assert (cluster.status.attempt, cluster.status.observed_generation) == (1, 2)
    later(cluster, 61)
    cluster.liveness = Liveness(changed_at=NOW, answered_at=cluster.now, quiet_seconds=61)
    cluster.step()
    assert (cluster.status.attempt, cluster.status.restarts) == (2, 1)
