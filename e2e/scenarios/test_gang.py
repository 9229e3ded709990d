"""The trainer pods of a job start and restart together."""

import signal

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.namespace import Namespace, Object, copy_job
from grpo_scenarios.pod_processes import Container

pytestmark = pytest.mark.cluster

JOB = "gang"


def test_two_trainer_pods_train_together_and_the_loss_of_one_restarts_both(namespace: Namespace) -> None:
    namespace.apply(two_trainer_pods(steps=24))
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


@pytest.mark.matrix
def test_a_rank_that_is_stopped_in_another_pod_is_told_in_the_jobs_own_words(namespace: Namespace) -> None:
    # the number of steps of a job cannot be changed
    namespace.kubectl("delete", "grpojob", JOB, "--ignore-not-found")
    namespace.apply(two_trainer_pods(steps=4000))
    namespace.wait_for_step(JOB, 3)
    other = next(pod for pod in namespace.pods_of(JOB, "trainer") if name_of(pod).endswith("-1"))
    rank = Container.of(other).others()
    rank.send(signal.SIGSTOP)
    try:
        told = namespace.wait_until(
            lambda: "rank 1 is stopped (by SIGSTOP)" in (said := ready_message(namespace)) and said,
            "the stopped rank in the message of Ready",
            timeout_seconds=60,
        )
        assert "no training process has made progress for " in told and "; rank 0 " in told
        assert "the stacks of those of this pod follow" in namespace.kubectl("logs", name_of(other))
        assert condition(namespace.job(JOB), "Ready") == "True"
    finally:
        rank.send(signal.SIGCONT)
    namespace.wait_until(
        lambda: "made progress" not in ready_message(namespace),
        "the end of the standstill",
        timeout_seconds=60,
    )
    assert namespace.status(JOB)["attempt"] == 1


def two_trainer_pods(*, steps: int) -> Object:
    return copy_job(
        JOB,
        algorithm={"steps": steps},
        trainer={"numNodes": 2, "processesPerNode": 1},
        rollout={"replicas": 1},
    )


def name_of(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def ready_message(namespace: Namespace) -> str:
    conditions = namespace.status(JOB)["conditions"]
    return next(each["message"] for each in conditions if each["type"] == "Ready")


def uids(namespace: Namespace, role: str) -> dict[str, str]:
    return {name_of(pod): pod["metadata"]["uid"] for pod in namespace.pods_of(JOB, role)}
