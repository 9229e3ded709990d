"""The condition MismatchHigh."""

from datetime import timedelta

from grpo_api.contract.mismatch import STEPS_BELOW, Mismatch
from grpo_api.v1alpha1.status import ConditionStatus, ConditionType

from .fake_cluster import FakeCluster, report, spec, termination, termination_message

HIGH = Mismatch(step=4, nats=2.5)


def statuses(cluster: FakeCluster) -> list[ConditionStatus]:
    """What the condition says; empty while it is not there."""
    return [c.status for c in cluster.status.conditions if c.type is ConditionType.MISMATCH_HIGH]


def running(cluster: FakeCluster, **changes: object) -> FakeCluster:
    cluster.progress = report(**changes)
    cluster.step()
    return cluster


def test_a_job_whose_engines_agree_does_not_have_it():
    cluster = running(FakeCluster().start(), mismatch=None)
    assert statuses(cluster) == []
    assert len(cluster.status.conditions) == len(ConditionType) - 5


def test_it_is_true_while_the_trainer_reports_a_mismatch_and_says_what_to_do():
    cluster = running(FakeCluster().start(), mismatch=HIGH)
    found = cluster.condition(ConditionType.MISMATCH_HIGH)
    assert (found.status, found.reason, found.message) == ("True", "LogprobsDiffer", HIGH.message)
    assert cluster.condition(ConditionType.READY).status == "True"


def test_it_is_false_once_the_trainer_reports_none():
    cluster = running(FakeCluster().start(), mismatch=HIGH)
    since = cluster.condition(ConditionType.MISMATCH_HIGH).last_transition_time
    cluster.now += timedelta(seconds=60)
    running(cluster, step=9, mismatch=None)
    found = cluster.condition(ConditionType.MISMATCH_HIGH)
    assert (found.status, found.reason) == ("False", "LogprobsAgree")
    assert found.last_transition_time > since


def test_a_new_attempt_ends_it_after_as_many_steps_as_must_be_below_the_bound():
    cluster = running(FakeCluster().start(), mismatch=HIGH)
    cluster.end(
        cluster.pod("trainer-a1-0"), termination(1, termination_message(1, "UnexpectedError", "boom"))
    )
    cluster.step()
    assert statuses(cluster) == ["True"]
    running(cluster, attempt=2, step=4 + STEPS_BELOW - 1, resumed_from_step=4, mismatch=None)
    assert statuses(cluster) == ["True"]
    running(cluster, attempt=2, step=4 + STEPS_BELOW, resumed_from_step=4, mismatch=None)
    assert statuses(cluster) == ["False"]


def test_where_sampling_changes_the_distribution_it_says_that_nothing_is_compared():
    cluster = running(FakeCluster(spec(sampling={"topP": 0.9, "topK": 20})).start(), mismatch=None)
    found = cluster.condition(ConditionType.MISMATCH_HIGH)
    assert (found.status, found.reason) == ("False", "LogprobsNotCompared")
    assert found.message.startswith("sampling.topP and sampling.topK change the distribution")
