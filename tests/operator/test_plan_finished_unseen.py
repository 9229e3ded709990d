"""A trainer that has finished is not run again because nobody saw its pod end."""

from typing import Any

import pytest

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase

from .fake_cluster import FakeCluster, report, spec, termination

CLAIM = {"claimName": "runs"}


def reported(checkpoint: dict[str, Any] | None = None, *, num_nodes: int = 1, **progress: Any) -> FakeCluster:
    """A job whose trainer has reported this."""
    cluster = FakeCluster(spec(checkpoint=checkpoint or {}, trainer={"numNodes": num_nodes})).start()
    cluster.progress = report(**{"step": 10, "policy_version": "1.10"} | progress)
    cluster.settle()
    return cluster


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_trainer_that_vanished_after_its_last_checkpoint_is_done(num_nodes: int):
    cluster = reported(CLAIM, checkpoint_step=10, state=TrainerState.DONE, num_nodes=num_nodes)
    cluster.progress = None  # the operator has been restarted: only the status knows
    cluster.vanish(*[name for name in cluster.pods if "-trainer-" in name])
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt, cluster.status.progress) == (
        Phase.SUCCEEDED,
        1,
        "10/10",
    )
    complete = cluster.condition(ConditionType.COMPLETE)
    assert complete.status == "True" and "before its pod was taken away" in complete.message
    assert cluster.names("rollout") == []
    assert cluster.status.last_failure is None


def test_a_trainer_whose_node_was_lost_after_its_last_checkpoint_is_done():
    cluster = reported(CLAIM, checkpoint_step=10)
    lost = ReasonMessage("DeletionByTaintManager", "node-a is unreachable")
    cluster.change(cluster.pod("trainer-a1-0"), is_deleting=True, disruption=lost)
    cluster.settle()
    assert cluster.status.phase == Phase.SUCCEEDED


def test_without_a_claim_the_last_step_is_all_there_is_to_wait_for():
    cluster = reported(checkpoint_step=None)
    cluster.vanish(cluster.pod("trainer-a1-0"))
    cluster.settle()
    assert cluster.status.phase == Phase.SUCCEEDED


def test_a_trainer_that_vanished_before_its_model_was_uploaded_is_run_again():
    """An attempt that begins with the last checkpoint has reported it before it uploads."""
    uploads = [{"to": "s3://models/run-1", "secret": "store"}]
    cluster = FakeCluster(spec(checkpoint=CLAIM, export=uploads)).start()
    cluster.progress = report(step=10, policy_version="1.10", checkpoint_step=10)
    cluster.settle()
    cluster.vanish(cluster.pod("trainer-a1-0"))
    cluster.settle()
    assert (cluster.status.phase == Phase.SUCCEEDED, cluster.status.attempt) == (False, 2)


@pytest.mark.parametrize(
    "progress",
    [{"checkpoint_step": 8}, {"checkpoint_step": None}, {"step": 9, "checkpoint_step": 8}],
    ids=["not saved yet", "never saved", "a step is left"],
)
def test_where_nothing_says_that_it_finished_the_next_attempt_follows(progress: dict[str, Any]):
    cluster = reported(CLAIM, **progress)
    cluster.vanish(cluster.pod("trainer-a1-0"))
    cluster.settle()
    assert (cluster.status.attempt, cluster.names("trainer")) == (2, ["trainer-a2-0"])


def test_what_an_earlier_attempt_reported_says_nothing_about_this_one():
    cluster = reported(CLAIM, checkpoint_step=10)
    cluster.end(cluster.pod("trainer-a1-0"), termination(75, "no space left for the model"))
    cluster.settle()
    cluster.run_all()
    cluster.progress = None
    cluster.settle()
    cluster.vanish(cluster.pod("trainer-a2-0"))
    cluster.settle()
    assert cluster.status.attempt == 3


def test_a_trainer_that_failed_after_its_last_step_is_tried_again():
    cluster = reported(CLAIM, checkpoint_step=10)
    cluster.end(cluster.pod("trainer-a1-0"), termination(75, "no space left for the model"))
    cluster.settle()
    assert (cluster.status.attempt, cluster.status.restarts) == (2, 1)
