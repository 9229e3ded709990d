"""The trainer pods of a job start and restart together."""

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.namespace import Namespace, copy_job

pytestmark = pytest.mark.cluster

JOB = "gang"


def test_two_trainer_pods_train_together_and_the_loss_of_one_restarts_both(namespace: Namespace) -> None:
    namespace.apply(
        copy_job(
            JOB,
            algorithm={"steps": 24},
            trainer={"numNodes": 2, "processesPerNode": 1},
            rollout={"replicas": 1},
        )
    )
    namespace.wait_for_step(JOB, 3)
    first = uids(namespace, "trainer")
    assert len(first) == 2 and namespace.status(JOB)["trainer"]["summary"] == "2/2"
    engines = uids(namespace, "rollout")
    assert len(engines) == 1

    namespace.delete_pod(next(name for name in first if name.endswith("-1")), is_graceful=False)
    namespace.wait_until(lambda: namespace.status(JOB)["attempt"] == 2, "attempt 2", timeout_seconds=90)
    namespace.wait_until(
        lambda: len(uids(namespace, "trainer")) == 2, "two new trainer pods", timeout_seconds=90
    )
    assert not set(uids(namespace, "trainer").values()) & set(first.values())
    # The engine outlives the trainers: it is not made again for them.
    assert uids(namespace, "rollout") == engines

    status = namespace.wait_for_finish(JOB)
    assert condition(namespace.job(JOB), "Complete") == "True", namespace.describe()
    assert (status["restarts"], status["disruptions"]) == (0, 1)


def uids(namespace: Namespace, role: str) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in namespace.pods_of(JOB, role)}
