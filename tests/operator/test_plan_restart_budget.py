"""failurePolicy.maxRestarts is given back by progress, which is a committed checkpoint beyond any before."""

from datetime import timedelta
from typing import Any

import pytest

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase

from .fake_cluster import FakeCluster, report, spec, termination, termination_message


def resumable(max_restarts: int = 1, **changes: Any) -> FakeCluster:
    """A job that keeps its checkpoints."""
    checkpoint = {"claimName": "runs"}
    return FakeCluster(
        spec(**{"checkpoint": checkpoint, "failurePolicy": {"maxRestarts": max_restarts}} | changes)
    ).start()


def commit(cluster: FakeCluster, step: int | None, **more: Any) -> None:
    """The running attempt reports the checkpoint of this step as its newest."""
    attempt = cluster.status.attempt
    cluster.progress = report(
        attempt=attempt, step=step or 4, policy_version=f"{attempt}.{step or 4}", checkpoint_step=step, **more
    )
    cluster.settle()


def fail(cluster: FakeCluster) -> None:
    """The running attempt fails, and the next one runs when its pause is over."""
    cluster.end(cluster.pod(f"trainer-a{cluster.status.attempt}-0"), termination(1, "boom"))
    go_on(cluster)


def go_on(cluster: FakeCluster) -> None:
    cluster.settle()
    cluster.vanish_deleted()
    cluster.now += timedelta(minutes=10)
    cluster.settle()
    cluster.run_all()
    cluster.settle()


def test_a_long_run_outlives_any_number_of_faults_with_a_checkpoint_between_them():
    cluster = resumable(max_restarts=1)
    for step in range(1, 7):
        commit(cluster, step)
        fail(cluster)
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 7)
    assert (cluster.status.restarts, cluster.status.failures_since_progress) == (6, 1)
    assert cluster.status.highest_checkpoint_step == 6


def test_days_without_a_new_checkpoint_are_no_progress():
    cluster = resumable(max_restarts=1)
    commit(cluster, 4)
    fail(cluster)
    cluster.now += timedelta(days=3)
    commit(cluster, 4, resumed_from_step=4)
    fail(cluster)
    failed = cluster.condition(ConditionType.FAILED)
    assert cluster.status.phase == Phase.FAILED
    assert "maxRestarts (1) is used up since the checkpoint of step 4: " in failed.message


@pytest.mark.parametrize("step", [3, 5])
def test_a_checkpoint_that_is_made_again_after_a_damaged_one_is_no_progress(step: int):
    cluster = resumable(max_restarts=1)
    commit(cluster, 5)
    fail(cluster)
    commit(cluster, step, resumed_from_step=2)
    fail(cluster)
    assert cluster.status.phase == Phase.FAILED


def test_a_checkpoint_that_no_claim_keeps_is_no_progress():
    cluster = resumable(max_restarts=1, checkpoint={"everySteps": 2})
    commit(cluster, 4)
    fail(cluster)
    commit(cluster, 6)
    fail(cluster)
    assert (cluster.status.phase, cluster.status.highest_checkpoint_step) == (Phase.FAILED, None)


def test_a_checkpoint_that_only_the_termination_message_tells_of_counts():
    cluster = resumable(max_restarts=1)
    fail(cluster)
    saved = report(attempt=2, policy_version="2.4", checkpoint_step=4)
    message = termination_message(1, "UnexpectedError", "boom", progress=saved)
    cluster.end(cluster.pod("trainer-a2-0"), termination(1, message))
    go_on(cluster)
    assert (cluster.status.phase, cluster.status.failures_since_progress) == (Phase.RUNNING, 1)


def test_what_counts_is_in_the_status_before_it_is_acted_on():
    cluster = resumable(max_restarts=1)
    fail(cluster)
    commit(cluster, 4)
    cluster.progress = None  # an operator that has just started, and has heard nothing
    fail(cluster)
    assert (cluster.status.phase, cluster.status.failures_since_progress) == (Phase.RUNNING, 1)


def test_the_pause_after_failures_comes_from_the_status():
    cluster = resumable(max_restarts=9)
    fail(cluster)
    fail(cluster)
    cluster.end(cluster.pod("trainer-a3-0"), termination(1, "boom"))
    cluster.step()
    running = cluster.condition(ConditionType.RUNNING)
    assert "3 failures" in running.message and "boom" in running.message
    cluster.now += timedelta(seconds=9)
    assert cluster.step().requeue_after == 1.0  # whichever operator plans it
    cluster.now += timedelta(seconds=1)
    cluster.step()
    assert "trainer-a4-0" in cluster.names("trainer")


def evict(cluster: FakeCluster) -> None:
    pod = cluster.pod(f"trainer-a{cluster.status.attempt}-0")
    cluster.change(
        pod, disruption=ReasonMessage("Preempted", "something else needs the node"), phase="Failed"
    )
    cluster.step()


def pause_after_eviction(cluster: FakeCluster) -> float:
    """Seconds between the eviction and the next attempt's pod."""
    evict(cluster)
    began = cluster.now
    for _ in range(3):
        plan = cluster.step()
        if any(name.startswith(f"trainer-a{cluster.status.attempt}-") for name in cluster.names("trainer")):
            break
        cluster.now += timedelta(seconds=plan.requeue_after or 0)
    cluster.run_all()
    cluster.settle()
    return (cluster.now - began).total_seconds()


def test_disruptions_without_progress_are_spaced_out_up_to_ten_minutes():
    cluster = resumable()
    pauses = [pause_after_eviction(cluster) for _ in range(11)]
    assert pauses == [0, 5, 10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert (cluster.status.disruptions, cluster.status.restarts) == (11, 0)


def test_a_disruption_after_progress_starts_at_once():
    cluster = resumable()
    for _ in range(5):
        pause_after_eviction(cluster)
    commit(cluster, 4)
    assert cluster.status.disruptions_since_progress == 0
    assert pause_after_eviction(cluster) == 0
    assert cluster.status.disruptions == 6


def test_while_an_attempt_is_spaced_out_the_condition_says_why_and_until_when():
    cluster = resumable()
    for _ in range(4):
        pause_after_eviction(cluster)
    evict(cluster)
    running = cluster.condition(ConditionType.RUNNING)
    assert (running.status, running.reason) == ("False", "WaitingForEarlierAttempt")
    until = cluster.now + timedelta(seconds=40)
    assert f"attempt 6 starts at {until:%Y-%m-%dT%H:%M:%SZ}" in running.message
    assert "5 disruptions" in running.message and "something else needs the node" in running.message


def test_a_pause_that_is_over_does_not_hide_what_blocks_the_attempt_that_followed():
    cluster = resumable()
    for _ in range(9):
        pause_after_eviction(cluster)
    broken = ReasonMessage("CrashLoopBackOff", "back-off")
    cluster.change(cluster.pod("rollout-0-i0"), is_ready=False, start_problem=broken, created_at=cluster.now)
    cluster.now += timedelta(seconds=30)
    cluster.settle()
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.reason == "CrashLoopBackOff"
