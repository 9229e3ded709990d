"""The condition EnvironmentFailing."""

from datetime import timedelta
from typing import Any

import pytest

from grpo_api.contract.left_out import MOST_FAILED_IN_A_ROW, LeftOutEnvironment, left_out_message
from grpo_api.v1alpha1.status import ConditionStatus, ConditionType

from .fake_cluster import FakeCluster, report, termination, termination_message

GO = (LeftOutEnvironment(name="go", num_groups=MOST_FAILED_IN_A_ROW),)


def statuses(cluster: FakeCluster) -> list[ConditionStatus]:
    """What the condition says; empty while it is not there."""
    return [c.status for c in cluster.status.conditions if c.type is ConditionType.ENVIRONMENT_FAILING]


def running(cluster: FakeCluster, **changes: Any) -> FakeCluster:
    cluster.progress = report(**({"total_steps": 2000} | changes))
    cluster.step()
    return cluster


@pytest.fixture
def failing() -> FakeCluster:
    return running(FakeCluster().start(), step=14, left_out=GO)


def test_it_is_true_while_all_groups_of_an_environment_are_left_out_and_the_job_trains_on(
    failing: FakeCluster,
):
    assert statuses(running(FakeCluster().start(), step=14)) == []
    found = failing.condition(ConditionType.ENVIRONMENT_FAILING)
    assert (found.status, found.reason, found.message) == ("True", "GroupsLeftOut", left_out_message(GO))
    assert failing.condition(ConditionType.READY).status == "True"


def test_it_is_false_once_a_group_of_it_is_there(failing: FakeCluster):
    since = failing.condition(ConditionType.ENVIRONMENT_FAILING).last_transition_time
    failing.now += timedelta(seconds=60)
    running(failing, step=15)
    found = failing.condition(ConditionType.ENVIRONMENT_FAILING)
    assert (found.status, found.reason) == ("False", "EnvironmentsWork")
    assert found.last_transition_time > since


def test_a_new_attempt_changes_nothing_before_it_has_made_a_step(failing: FakeCluster):
    boom = termination_message(1, "UnexpectedError", "boom")
    failing.end(failing.pod("trainer-a1-0"), termination(1, boom))
    failing.step()
    resumed: dict[str, Any] = {"attempt": 2, "resumed_from_step": 12}
    running(failing, step=12, **resumed)
    assert statuses(failing) == ["True"]
    running(failing, step=13, **resumed)
    assert statuses(failing) == ["False"]
