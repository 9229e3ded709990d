"""Trainer pods live and die together."""

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.world import World, copy_job

pytestmark = pytest.mark.cluster

JOB = "gang"


def test_two_trainer_pods_train_together_and_the_loss_of_one_restarts_both(world: World) -> None:
    world.apply(
        copy_job(
            JOB,
            algorithm={"steps": 24},
            trainer={"numNodes": 2, "processesPerNode": 1},
            rollout={"replicas": 1},
        )
    )
    world.wait_for_step(JOB, 3)
    first = trainers(world)
    assert len(first) == 2 and world.status(JOB)["trainer"]["summary"] == "2/2"
    rollouts = {pod["metadata"]["uid"] for pod in world.pods_of(JOB, "rollout")}

    world.delete_pod(next(name for name in first if name.endswith("-1")), is_graceful=False)
    world.wait_until(lambda: world.status(JOB)["attempt"] == 2, "attempt 2", timeout_seconds=90)
    world.wait_until(lambda: len(trainers(world)) == 2, "two new trainer pods", timeout_seconds=90)
    assert not set(trainers(world).values()) & set(first.values())

    status = world.wait_for_finish(JOB)
    assert condition(world.job(JOB), "Complete") == "True", world.describe()
    assert (status["restarts"], status["disruptions"]) == (0, 1)
    # The engine outlives the trainers: it was not made again for them.
    lost = {pod["metadata"]["uid"] for pod in world.pods(f"grpo.dev/job={JOB},grpo.dev/role=rollout")}
    assert lost <= rollouts


def trainers(world: World) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.pods_of(JOB, "trainer")}
