"""Attempts that never begin."""

from dataclasses import replace
from datetime import timedelta

import pytest

from grpo_api.contract.progress import EngineCounts, TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase

from .fake_cluster import NOW, FakeCluster, report, spec, termination

WAITING = {"state": TrainerState.WAITING_FOR_ROLLOUT, "step": 0, "policy_version": "1.0"}


def later(cluster: FakeCluster, seconds: float) -> None:
    cluster.now = NOW + timedelta(seconds=seconds)


def short(**changes: object) -> FakeCluster:
    return FakeCluster(spec(startupDeadlineSeconds=100, **changes))


def age_pods(cluster: FakeCluster) -> None:
    """The API server dates pods when they are made."""
    for name, pod in cluster.pods.items():
        cluster.pods[name] = replace(pod, created_at=pod.created_at or cluster.now)


def test_trainer_pods_that_do_not_run_in_time_fail_the_job_with_what_held_them_up():
    cluster = short()
    cluster.settle()
    age_pods(cluster)
    cluster.change(
        cluster.pod("trainer-a1-0"), start_problem=ReasonMessage("ErrImagePull", "pull access denied")
    )
    later(cluster, 99)
    cluster.settle()
    assert cluster.condition(ConditionType.FINISHED).status == "False"
    later(cluster, 100)
    cluster.settle()
    failed = cluster.condition(ConditionType.FAILED)
    assert (cluster.status.phase, failed.reason) == (Phase.FAILED, "StartupDeadlineExceeded")
    assert "startupDeadlineSeconds (100)" in failed.message
    assert "ErrImagePull" in failed.message and "pull access denied" in failed.message
    failure = cluster.status.last_failure
    assert failure is not None
    assert (failure.reason, failure.pod) == ("ErrImagePull", cluster.pod("trainer-a1-0"))


def test_a_trainer_without_engines_in_time_fails_the_job_with_what_is_wrong_with_them():
    cluster = short().start()
    age_pods(cluster)
    cluster.change(
        cluster.pod("rollout-1-i0"),
        is_ready=False,
        start_problem=ReasonMessage("Unschedulable", "Insufficient memory"),
    )
    cluster.progress = report(**WAITING, message="waits for engines")
    cluster.settle()
    later(cluster, 100)
    cluster.settle()
    failed = cluster.condition(ConditionType.FAILED)
    assert failed.reason == "StartupDeadlineExceeded" and "Insufficient memory" in failed.message
    failure = cluster.status.last_failure
    assert failure is not None and (failure.role, failure.pod) == ("rollout", cluster.pod("rollout-1-i0"))


def test_engines_that_never_get_ready_and_give_no_reason_are_named():
    cluster = short().start()
    age_pods(cluster)
    cluster.change(cluster.pod("rollout-1-i0"), is_ready=False, node="node-b")
    cluster.progress = report(**WAITING, message="waits for engines")
    cluster.settle()
    later(cluster, 100)
    cluster.settle()
    failure = cluster.status.last_failure
    assert failure is not None and failure.reason == "EnginesStarting"
    assert (failure.role, failure.pod, failure.node) == ("rollout", cluster.pod("rollout-1-i0"), "node-b")


def test_a_trainer_that_never_finishes_starting_fails_the_job_with_its_own_message():
    cluster = short().start()
    age_pods(cluster)
    cluster.progress = report(**WAITING | {"state": TrainerState.STARTING}, message="loads the model")
    cluster.settle()
    later(cluster, 100)
    cluster.settle()
    assert "loads the model" in cluster.condition(ConditionType.FAILED).message


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
    cluster = short().start()
    age_pods(cluster)
    cluster.progress = progress
    later(cluster, 1000)
    cluster.settle()
    assert cluster.status.phase == Phase.RUNNING


def test_an_attempt_that_loses_its_engine_in_its_first_step_has_begun():
    cluster = short().start()
    age_pods(cluster)
    later(cluster, 50)
    cluster.progress = report(step=0, policy_version="1.0")
    cluster.settle()
    later(cluster, 150)
    cluster.progress = report(**WAITING, message="waits for engines")
    cluster.settle()
    later(cluster, 1000)
    cluster.settle()
    ready = cluster.condition(ConditionType.READY)
    assert (cluster.status.phase, ready.reason) == (Phase.RUNNING, "WaitingForRollout")


def test_that_an_earlier_attempt_had_begun_does_not_excuse_the_next():
    cluster = short().start()
    age_pods(cluster)
    later(cluster, 50)
    cluster.progress = report(step=0, policy_version="1.0")
    cluster.settle()
    later(cluster, 60)
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.step()
    cluster.vanish_deleted()
    cluster.settle()
    age_pods(cluster)
    later(cluster, 70)
    cluster.run_all()
    cluster.progress = report(**WAITING | {"policy_version": "2.0"}, attempt=2, message="waits for engines")
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 2)
    later(cluster, 160)
    cluster.settle()
    assert cluster.condition(ConditionType.FAILED).reason == "StartupDeadlineExceeded"


def test_a_resumed_attempt_has_begun_when_it_made_a_step_of_its_own():
    cluster = short().start()
    age_pods(cluster)
    waiting = {**WAITING, "step": 7, "policy_version": "1.7", "resumed_from_step": 7}
    cluster.progress = report(**waiting)
    cluster.settle()
    later(cluster, 100)
    cluster.settle()
    assert cluster.status.phase == Phase.FAILED


def test_a_trainer_that_waited_for_engines_and_cannot_be_reached_any_more_is_not_held_to_the_deadline():
    cluster = short().start()
    age_pods(cluster)
    cluster.progress = report(**WAITING, message="waits for engines")
    cluster.settle()
    cluster.report_problem = ReasonMessage("ProgressUnreachable", "the trainer has not answered")
    later(cluster, 1000)
    cluster.settle()
    ready = cluster.condition(ConditionType.READY)
    assert (cluster.status.phase, ready.reason) == (Phase.RUNNING, "ProgressUnreachable")
    cluster.report_problem = None  # it answers again, and waits as before
    cluster.settle()
    assert cluster.condition(ConditionType.FAILED).reason == "StartupDeadlineExceeded"


def test_a_trainer_that_never_answered_is_not_held_to_the_deadline():
    cluster = short().start()
    age_pods(cluster)
    cluster.report_problem = ReasonMessage("ProgressUnreachable", "the trainer has not answered")
    later(cluster, 1000)
    cluster.settle()
    ready = cluster.condition(ConditionType.READY)
    assert (cluster.status.phase, ready.reason) == (Phase.RUNNING, "ProgressUnreachable")


def test_an_operator_that_was_away_creates_the_pods_before_it_gives_the_job_up():
    cluster = short()
    cluster.step()
    cluster.vanish(*list(cluster.pods))  # it was killed before it made them
    later(cluster, 1000)
    cluster.step()
    assert (cluster.status.phase, cluster.names("trainer")) == (Phase.PENDING, ["trainer-a1-0"])


def test_the_job_is_planned_again_at_its_deadline():
    cluster = short()
    cluster.settle()
    later(cluster, 40)
    assert cluster.plan().requeue_after == 60.0


def test_both_deadlines_may_change_while_a_job_runs():
    cluster = short()
    cluster.settle()
    cluster.spec, cluster.generation = spec(startupDeadlineSeconds=50), 2
    cluster.stored_spec = spec(startupDeadlineSeconds=100)
    age_pods(cluster)
    later(cluster, 50)
    cluster.settle()
    assert cluster.condition(ConditionType.FAILED).reason == "StartupDeadlineExceeded"


def test_an_engine_fleet_that_is_fully_lost_later_is_not_a_slow_start():
    cluster = short().start()
    age_pods(cluster)
    cluster.progress = report(step=3, policy_version="1.3")
    cluster.settle()
    lost = {"state": TrainerState.WAITING_FOR_ROLLOUT, "engines": EngineCounts(desired=2)}
    cluster.progress = report(**lost)
    later(cluster, 1000)
    cluster.settle()
    assert cluster.status.phase == Phase.RUNNING
