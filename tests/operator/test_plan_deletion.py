"""What becomes of the pods of a job that is being deleted."""

import pytest

from grpo_api.v1alpha1.status import ConditionType

from .fake_cluster import FakeCluster

FOREIGN = "fault.example/x"


def deleted(*finalizers: str) -> FakeCluster:
    """A running job that somebody has deleted."""
    cluster = FakeCluster().start()
    cluster.is_deleting, cluster.finalizers = True, finalizers
    cluster.generation += 1  # as the API server counts a deletion
    return cluster


@pytest.mark.parametrize("others", [(), ("foregroundDeletion",)])
def test_a_deleted_job_that_a_foreign_finalizer_holds_gives_up_its_pods_and_says_what_it_waits_for(
    others: tuple[str, ...],
):
    cluster = deleted(FOREIGN, *others)
    plan = cluster.step()
    assert cluster.names("trainer") == cluster.names("rollout") == []
    assert {deletion.grace_seconds for deletion in plan.delete} == {None}  # what their specs say
    ready = cluster.condition(ConditionType.READY)
    assert (ready.status, ready.reason) == ("False", "BeingDeleted")
    assert FOREIGN in ready.message and "metadata.finalizers" in ready.message
    assert cluster.condition(ConditionType.RUNNING).status == "False"
    assert (cluster.status.trainer.summary, cluster.status.rollout.summary) == ("0/0", "0/0")
    assert cluster.status.observed_generation == cluster.generation
    cluster.vanish_deleted()
    plan = cluster.step()
    assert (plan.create, plan.delete, plan.events) == ((), (), ())


@pytest.mark.parametrize("finalizers", [(), ("orphan",), ("orphan", FOREIGN)])
def test_a_deletion_that_leaves_the_children_leaves_the_pods_too(finalizers: tuple[str, ...]):
    cluster = deleted(*finalizers)
    before = cluster.status
    plan = cluster.plan()
    assert (plan.create, plan.delete, plan.status) == ((), (), before)
