"""What people must know beside the state of a job, in status.notes and at the end of Ready."""

import pytest

from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.plan.notes import with_notes, without_notes

from .fake_cluster import FakeCluster

OLD = "the GRPOJob CRD is older than this operator and lacks status.notes"


def ready(cluster: FakeCluster) -> str:
    return cluster.condition(ConditionType.READY).message


@pytest.mark.parametrize("is_dropped", [False, True], ids=["the CRD has status.notes", "the CRD drops it"])
def test_ready_ends_with_the_note_once_as_long_as_the_crd_is_old(is_dropped: bool):
    cluster = FakeCluster().start()
    own = ready(cluster)
    cluster.crd_problem = OLD
    for _ in range(3):
        cluster.step()
        if is_dropped:
            cluster.status = cluster.status.model_copy(update={"notes": ""})
        cluster.told_notes = OLD
        assert ready(cluster) == f"{own}; {OLD}"
    cluster.crd_problem = ""
    cluster.step()
    assert is_dropped or (ready(cluster), cluster.status.notes) == (own, "")


@pytest.mark.parametrize("message", ["", "the trainer makes steps", "x" * 800])
@pytest.mark.parametrize("notes", ["", "short", "n" * 1000])
def test_what_ready_says_by_itself_is_found_again_also_where_a_condition_cuts_it(message: str, notes: str):
    assert without_notes(with_notes(message, notes)[:1024], notes) == message
