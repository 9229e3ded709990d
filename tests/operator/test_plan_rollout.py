"""Rollout pods: lost ones are replaced under names that were never used, superfluous ones go."""

from dataclasses import replace
from datetime import timedelta

import pytest

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase

from .fake_world import FakeWorld, spec


def test_a_rollout_pod_that_vanished_between_two_looks_is_replaced_under_a_new_name():
    world = FakeWorld().start()
    world.vanish(world.pod("rollout-1-i0"))
    world.step()
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]
    world.settle()
    world.vanish(world.pod("rollout-1-i1"))
    world.step()
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i2"]


def twins(world: FakeWorld, *, is_older_ready: bool) -> None:
    """Two operators replaced the same pod at once."""
    older, newer = world.pod("rollout-0-i0"), world.pod("rollout-0-i1")
    world.pods[newer] = replace(
        world.pods[older], name=newer, uid="twin", position=(0, 1), is_ready=not is_older_ready
    )
    world.change(older, is_ready=is_older_ready)


def test_of_two_pods_of_one_replica_the_ready_one_stays():
    for is_older_ready, left in ((True, "rollout-0-i0"), (False, "rollout-0-i1")):
        world = FakeWorld(spec(rollout={"replicas": 1})).start()
        twins(world, is_older_ready=is_older_ready)
        world.step()
        assert world.names("rollout") == [left]


def test_of_two_pods_of_one_replica_of_which_none_is_ready_the_older_stays():
    world = FakeWorld(spec(rollout={"replicas": 1})).start()
    twins(world, is_older_ready=True)
    world.change(world.pod("rollout-0-i0"), is_ready=False)
    world.step()
    assert world.names("rollout") == ["rollout-0-i0"]


@pytest.mark.parametrize(
    "happening",
    [{"is_deleting": True}, {"phase": "Failed", "is_ready": False}],
    ids=["deleted", "failed"],
)
def test_a_lost_rollout_pod_is_replaced_at_once_under_a_new_name(happening: dict):
    world = FakeWorld().start()
    world.change(world.pod("rollout-1-i0"), **happening)
    world.step()
    assert "rollout-1-i1" in world.names("rollout")
    assert (world.status.attempt, world.status.phase) == (1, Phase.RUNNING)
    world.vanish_deleted()
    world.settle()
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]


def test_rollout_pods_that_their_node_refuses_at_once_are_replaced_with_pauses_and_explained():
    world = FakeWorld().start()
    refused = ReasonMessage("OutOfcpu", "Node didn't have enough resource: cpu")
    world.change(
        world.pod("rollout-1-i0"), phase="Failed", is_ready=False, start_problem=refused, created_at=world.now
    )
    plan = world.step()
    assert (plan.requeue_after, world.names("rollout")) == (10.0, ["rollout-0-i0", "rollout-1-i0"])
    ready = world.condition(ConditionType.ROLLOUT_READY)
    assert (ready.status, ready.reason) == ("False", "OutOfcpu")
    world.now += timedelta(seconds=10)
    world.step()
    assert world.names("rollout") == ["rollout-0-i0", "rollout-1-i1"]
