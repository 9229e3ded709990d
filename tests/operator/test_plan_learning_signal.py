"""The condition NoLearningSignal."""

from datetime import timedelta
from typing import Any

import pytest

from grpo_api.contract.learning_signal import STEPS_REPORTED, StepsWithoutSignal
from grpo_api.contract.progress import TrainerState
from grpo_api.v1alpha1.status import ConditionStatus, ConditionType

from .fake_cluster import FakeCluster, report, termination, termination_message

LACKING = StepsWithoutSignal(step=14, no_reward=STEPS_REPORTED, rewards="copy")
FEWER = StepsWithoutSignal(step=13, no_reward=STEPS_REPORTED - 1, rewards="copy")


def statuses(cluster: FakeCluster) -> list[ConditionStatus]:
    """What the condition says; empty while it is not there."""
    return [c.status for c in cluster.status.conditions if c.type is ConditionType.NO_LEARNING_SIGNAL]


def running(cluster: FakeCluster, **changes: Any) -> FakeCluster:
    cluster.progress = report(**({"total_steps": 2000} | changes))
    cluster.step()
    return cluster


@pytest.fixture
def lacking() -> FakeCluster:
    return running(FakeCluster().start(), step=14, steps_without_signal=LACKING)


def test_a_job_that_learns_does_not_have_it_nor_one_that_taught_nothing_for_fewer_steps():
    cluster = running(FakeCluster().start())
    assert statuses(cluster) == []
    running(cluster, step=13, steps_without_signal=FEWER)
    assert statuses(cluster) == []


def test_it_is_true_while_steps_teach_nothing_and_says_what_to_do(lacking: FakeCluster):
    found = lacking.condition(ConditionType.NO_LEARNING_SIGNAL)
    assert (found.status, found.reason, found.message) == ("True", "NoReward", LACKING.message)
    assert lacking.condition(ConditionType.READY).status == "True"


def test_it_is_false_once_a_step_has_something_to_learn(lacking: FakeCluster):
    since = lacking.condition(ConditionType.NO_LEARNING_SIGNAL).last_transition_time
    lacking.now += timedelta(seconds=60)
    running(lacking, step=15)
    found = lacking.condition(ConditionType.NO_LEARNING_SIGNAL)
    assert (found.status, found.reason) == ("False", "LearningAgain")
    assert found.last_transition_time > since


def test_a_new_attempt_ends_it_with_a_step_that_has_something_to_learn(lacking: FakeCluster):
    boom = termination_message(1, "UnexpectedError", "boom")
    lacking.end(lacking.pod("trainer-a1-0"), termination(1, boom))
    lacking.step()
    resumed: dict[str, Any] = {"attempt": 2, "resumed_from_step": 12}
    running(lacking, step=12, **resumed)
    assert statuses(lacking) == ["True"]
    running(lacking, step=13, steps_without_signal=FEWER, **resumed)
    assert statuses(lacking) == ["True"]
    running(lacking, step=14, **resumed)
    assert statuses(lacking) == ["False"]


def test_a_short_run_that_never_had_anything_to_learn_has_it_when_it_is_complete():
    cluster = running(FakeCluster().start(), step=2, total_steps=3)
    lacking = StepsWithoutSignal(step=3, equal_rewards=3, rewards="copy")
    last = report(step=3, total_steps=3, state=TrainerState.DONE, steps_without_signal=lacking)
    ended = termination_message(0, "Completed", "every step is done", progress=last)
    cluster.end(cluster.pod("trainer-a1-0"), termination(0, ended))
    cluster.settle()
    assert cluster.condition(ConditionType.COMPLETE).status == "True"
    found = cluster.condition(ConditionType.NO_LEARNING_SIGNAL)
    assert (found.status, found.reason) == ("True", "EqualRewards")
