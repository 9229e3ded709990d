"""Engines that end with 40, which says that no retry can help: when that ends the job."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from grpo_api.contract.progress import EngineCounts, Progress, TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.judge.engines import NO_ENGINE_SECONDS, EngineAbsence
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.cluster.kinds import RESOURCE_FLAVORS
from grpo_operator.observe.process_state import ProcessState

from . import fake_kueue
from .fake_cluster import NOW, UID, FakeCluster, report, spec, termination, termination_message

KEY = ("default", "copy")
SENTENCE = "engine.maxModelLen (64) is longer than the model allows (32)"
WORDS = termination_message(40, "UserError", SENTENCE)
NONE_CURRENT = EngineCounts(desired=2, known=2, current=0)
WAITING: dict[str, Any] = {"state": TrainerState.WAITING_FOR_ROLLOUT, "engines": NONE_CURRENT}
BEFORE_THE_FIRST_STEP: dict[str, Any] = {**WAITING, "step": 0, "policy_version": "1.0"}


def at(seconds: float):
    return NOW + timedelta(seconds=seconds)


def end_with_40(cluster: FakeCluster, replica: int = 1, *, after: float = 0.0, **changes: Any) -> None:
    """An engine ends with 40 and is started again by its kubelet."""
    how = {"last_termination": termination(40, WORDS, after=after), "restarts": 1, "is_ready": False}
    cluster.change(cluster.pod(f"rollout-{replica}-i0"), **(how | changes))


def hear(cluster: FakeCluster, reports: Iterable[tuple[float, Progress]]) -> None:
    """The trainer answers at these seconds; the cluster then knows what a memory makes of it."""
    state = ProcessState()
    for seconds, progress in reports:
        state.remember_progress(KEY, progress, now=at(seconds))
        cluster.now = at(seconds)
    heard = state.report(KEY, uid=UID, attempt=cluster.status.attempt)
    cluster.progress, cluster.liveness, cluster.absence = heard.progress, heard.liveness, heard.absence


def waiting_from(begin: int, end: int, **changes: Any) -> list[tuple[float, Progress]]:
    """What is polled every two seconds while no engine is Current."""
    said = {**WAITING, **changes}
    return [(seconds, report(**said, heartbeat=100 + seconds)) for seconds in range(begin, end + 1, 2)]


def at_step_900(**changes: Any) -> FakeCluster:
    cluster = FakeCluster(spec(algorithm={"steps": 1000}, **changes)).start()
    hear(cluster, [(0, report(step=900, total_steps=1000, policy_version="1.900", heartbeat=1))])
    cluster.settle()
    return cluster


def assert_goes_on(cluster: FakeCluster) -> None:
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 1)
    assert cluster.condition(ConditionType.FINISHED).status == "False"


def assert_failed(cluster: FakeCluster) -> None:
    cluster.settle()
    assert cluster.status.phase == Phase.FAILED
    assert cluster.condition(ConditionType.FAILED).message.startswith(SENTENCE)
    assert cluster.status.last_failure is not None and cluster.status.last_failure.role == "rollout"
    cluster.now += timedelta(seconds=60)
    cluster.settle()
    assert cluster.running() == []


def assert_retried(cluster: FakeCluster) -> None:
    """The spec has worked: another attempt follows, and it is counted."""
    cluster.settle()
    assert (cluster.status.phase, cluster.status.restarts) == (Phase.RESTARTING, 1)
    restarting = cluster.condition(ConditionType.RESTARTING)
    assert restarting.message.startswith(f"attempt 2 follows because: {SENTENCE}")
    assert cluster.status.last_failure is not None and cluster.status.last_failure.role == "rollout"


def test_before_the_first_step_it_ends_the_job_at_once_although_its_kubelet_starts_it_again():
    cluster = FakeCluster().start()
    cluster.progress = report(**BEFORE_THE_FIRST_STEP)
    cluster.settle()
    end_with_40(cluster)
    assert_failed(cluster)


@pytest.mark.parametrize(("before", "now", "ends"), [(137, 40, True), (40, 137, False)])
def test_an_engine_that_has_ended_twice_is_judged_by_its_last_end(before: int, now: int, ends: bool):
    cluster = FakeCluster().start()
    cluster.progress = report(**BEFORE_THE_FIRST_STEP)
    cluster.settle()
    first, second = termination(before, WORDS, after=-5), termination(now, WORDS)
    end_with_40(cluster, last_termination=first, termination=second)
    if ends:
        assert_failed(cluster)
    else:
        assert_goes_on(cluster)


def test_it_ends_the_job_while_the_trainer_pods_wait_for_a_node():
    cluster = FakeCluster()
    cluster.settle()
    cluster.change(cluster.pod("trainer-a1-0"), start_problem=ReasonMessage("Unschedulable", "no GPU"))
    end_with_40(cluster, phase="Running")
    assert_failed(cluster)


def test_while_nothing_was_heard_of_the_trainer_it_ends_nothing_and_is_planned_again_soon():
    cluster = FakeCluster().start()
    end_with_40(cluster)
    assert_goes_on(cluster)
    assert cluster.plan().requeue_after == 5.0
    cluster.progress = report(**BEFORE_THE_FIRST_STEP)
    assert_failed(cluster)


@pytest.mark.parametrize("silence", ["problem", "one poll"])
def test_a_trainer_that_does_not_answer_now_may_have_begun(silence: str):
    cluster = FakeCluster().start()
    cluster.progress = report(**BEFORE_THE_FIRST_STEP)
    cluster.settle()
    if silence == "problem":
        cluster.report_problem = ReasonMessage("ProgressUnreachable", "no answer")
    else:
        cluster.silent_since = cluster.now
    end_with_40(cluster)
    assert_goes_on(cluster)


def test_a_replacement_at_step_900_is_shown_and_ends_nothing_while_others_are_current():
    cluster = at_step_900()
    cluster.now = at(300)
    end_with_40(cluster, after=295)
    assert_goes_on(cluster)
    failure, ready = cluster.status.last_failure, cluster.condition(ConditionType.ROLLOUT_READY)
    assert failure is not None and (failure.role, failure.exit_code) == ("rollout", 40)
    assert SENTENCE in failure.message and SENTENCE in ready.message
    assert (ready.status, ready.reason) == ("False", "UserError")


def test_the_only_engine_that_is_back_within_a_minute_ends_nothing():
    cluster = at_step_900(rollout={"replicas": 1})
    end_with_40(cluster, 0)
    for end in (10, 30, 58):
        hear(cluster, waiting_from(0, end, step=900))
        assert_goes_on(cluster)
    cluster.change(cluster.pod("rollout-0-i0"), is_ready=True)
    back = report(step=900, heartbeat=900)
    hear(cluster, [*waiting_from(0, 58, step=900), (60, back)])
    assert_goes_on(cluster)


def test_the_only_engine_that_is_not_back_after_a_minute_ends_the_attempt_with_its_sentence():
    cluster = at_step_900(rollout={"replicas": 1})
    end_with_40(cluster, 0)
    hear(cluster, waiting_from(0, 58, step=900))
    plan = cluster.step()
    assert (cluster.status.phase, plan.requeue_after) == (Phase.RUNNING, 5.0)
    hear(cluster, waiting_from(0, 60, step=900))
    assert_retried(cluster)
    assert "newest weights for 60 s" in cluster.condition(ConditionType.RESTARTING).message


def test_the_job_is_planned_again_when_the_minute_is_over():
    cluster = at_step_900(rollout={"replicas": 1})
    end_with_40(cluster, 0)
    hear(cluster, waiting_from(0, 20, step=900))
    assert cluster.plan().requeue_after == 40.0


@pytest.mark.parametrize(
    "last",
    [
        report(step=900, heartbeat=500, **WAITING),
        report(step=901, heartbeat=500, **WAITING),
        report(step=900, heartbeat=100, **WAITING),
    ],
    ids=["an engine was current between", "a step was finished between", "the trainer said nothing new"],
)
def test_only_reports_without_interruption_make_the_minute(last: Progress):
    cluster = at_step_900(rollout={"replicas": 1})
    end_with_40(cluster, 0)
    before = waiting_from(0, 0, step=900)
    if last.heartbeat == 500 and last.step == 900:
        before = [*waiting_from(0, 40, step=900), (42, report(step=900, heartbeat=400))]
    elif last.step == 901:
        before = waiting_from(0, 58, step=900)
    hear(cluster, [*before, *((seconds, last) for seconds in range(60, 90, 2))])
    assert_goes_on(cluster)


def test_an_engine_that_waits_for_quota_is_none_that_may_come_back():
    cluster = FakeCluster(spec(queueName="team", algorithm={"steps": 1000}, rollout={"replicas": 1}))
    cluster.cluster_objects = {(RESOURCE_FLAVORS, "gpu"): {}}
    cluster.settle()
    fake_kueue.admit(cluster.workloads[cluster.base])
    cluster.start()
    hear(cluster, [(0, report(step=900, total_steps=1000, policy_version="1.900", heartbeat=1))])
    cluster.settle()
    assert cluster.spec is not None and cluster.spec.rollout is not None
    two = cluster.spec.rollout.model_copy(update={"replicas": 2})
    cluster.spec = cluster.spec.model_copy(update={"rollout": two})
    cluster.settle()
    end_with_40(cluster, 0)
    hear(cluster, waiting_from(0, 60, step=900))
    assert_retried(cluster)


def test_a_trainer_that_falls_silent_for_a_while_has_its_minute_begin_again():
    cluster = at_step_900(rollout={"replicas": 1})
    end_with_40(cluster, 0)
    hear(cluster, [*waiting_from(0, 30, step=900), *waiting_from(90, 140, step=900)])
    assert_goes_on(cluster)
    hear(cluster, [*waiting_from(0, 30, step=900), *waiting_from(90, 150, step=900)])
    cluster.silent_since = cluster.now
    assert_goes_on(cluster)
    cluster.silent_since = None
    assert_retried(cluster)


def test_an_operator_that_restarts_begins_the_minute_again():
    cluster = at_step_900(rollout={"replicas": 1})
    end_with_40(cluster, 0)
    hear(cluster, waiting_from(0, 58, step=900))
    assert_goes_on(cluster)
    cluster.progress, cluster.absence = None, EngineAbsence()  # a new process
    assert_goes_on(cluster)
    hear(cluster, waiting_from(60, 60 + int(NO_ENGINE_SECONDS) - 2, step=900))
    assert_goes_on(cluster)
    hear(cluster, waiting_from(60, 60 + int(NO_ENGINE_SECONDS), step=900))
    assert_retried(cluster)


def second_attempt(*, first_pod_at: float, **changes: Any) -> FakeCluster:
    """Attempt 1 trained and its trainer failed; the pods of attempt 2 run, and its trainer waits."""
    cluster = at_step_900(**changes)
    end_with_40(cluster, after=50)
    cluster.now = at(100)
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom", after=100))
    cluster.settle()
    assert cluster.status.attempt == 2
    cluster.now = at(first_pod_at)
    cluster.change(cluster.pod("trainer-a2-0"), created_at=cluster.now)
    return cluster


def test_a_40_left_over_from_the_attempt_before_says_nothing_about_the_next():
    cluster = second_attempt(first_pod_at=110)
    cluster.settle()
    assert cluster.status.phase == Phase.STARTING
    cluster.run_all()
    cluster.progress = report(**BEFORE_THE_FIRST_STEP | {"policy_version": "2.0"}, attempt=2)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 2)


@pytest.mark.parametrize("checkpoint", [{}, {"checkpoint": {"claimName": "out", "everySteps": 10}}])
def test_a_40_of_one_engine_while_the_next_attempt_starts_ends_nothing_as_the_spec_has_worked(checkpoint):
    cluster = second_attempt(first_pod_at=110, **checkpoint)
    cluster.run_all()
    saved = 900 if checkpoint else 0
    cluster.progress = report(
        **BEFORE_THE_FIRST_STEP | {"step": saved, "policy_version": f"2.{saved}", "resumed_from_step": saved},
        attempt=2,
    )
    cluster.settle()
    end_with_40(cluster, after=110)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 2)
    assert SENTENCE in cluster.condition(ConditionType.ROLLOUT_READY).message


@pytest.mark.parametrize(
    "changes",
    [
        {"is_ready": True},
        {"unready_since": at(30)},
        {"is_deleting": True},
        {"last_termination": termination(1, "a flake"), "restarts": 2},
    ],
    ids=["ready again", "was ready since then", "being deleted", "it ended otherwise since then"],
)
def test_an_engine_that_does_not_lie_where_its_40_left_it_ends_nothing(changes: dict):
    cluster = FakeCluster().start()
    cluster.progress = report(**BEFORE_THE_FIRST_STEP)
    cluster.settle()
    end_with_40(cluster, after=-10, **changes)
    assert_goes_on(cluster)


def test_a_hub_that_an_engine_cannot_reach_is_shown_and_ends_nothing_even_before_the_first_step():
    cluster = FakeCluster().start()
    cluster.progress = report(**BEFORE_THE_FIRST_STEP)
    unreachable = termination_message(75, "HubUnreachable", "the Hub cannot be reached")
    end_with_40(cluster, last_termination=termination(75, unreachable))
    assert_goes_on(cluster)
    assert cluster.condition(ConditionType.ROLLOUT_READY).reason == "HubUnreachable"


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"is_ready": False},
        {"is_ready": False, "last_termination": termination(137, reason="OOMKilled"), "restarts": 1},
        {
            "is_ready": False,
            "phase": "Pending",
            "start_problem": ReasonMessage("Unschedulable", "no GPU"),
        },
        {"is_deleting": True},
    ],
    ids=["slow", "joining", "restarted for another reason", "without a node", "being replaced"],
)
def test_while_another_engine_may_come_back_the_job_goes_on_and_names_the_40(other: dict):
    cluster = at_step_900()
    cluster.change(cluster.pod("rollout-0-i0"), **other)
    end_with_40(cluster, 1)
    hear(cluster, waiting_from(0, 600, step=900))
    assert_goes_on(cluster)
    ready = cluster.condition(ConditionType.ROLLOUT_READY)
    assert (ready.status, ready.reason) == ("False", "UserError")
    assert SENTENCE in ready.message and cluster.pod("rollout-1-i0") in ready.message


def test_once_every_engine_says_40_the_attempt_ends():
    cluster = at_step_900()
    end_with_40(cluster, 1)
    hear(cluster, waiting_from(0, 600, step=900))
    assert_goes_on(cluster)
    end_with_40(cluster, 0, after=590)
    assert_retried(cluster)
