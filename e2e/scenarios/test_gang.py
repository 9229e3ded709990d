"""A rank that stands still in one of two trainer pods. That the pods of a job start and restart together:
test_fields_of_grpo.py."""

import signal

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.namespace import Namespace, Object, copy_job
from grpo_scenarios.pod_processes import Container

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

JOB = "gang"


def test_a_rank_that_is_stopped_in_another_pod_is_told_in_the_jobs_own_words(namespace: Namespace) -> None:
    namespace.apply(
        copy_job(
            JOB,
            algorithm={"steps": 4000},
            trainer={"numNodes": 2, "processesPerNode": 1},
            rollout={"replicas": 1},
        )
    )
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


def name_of(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def ready_message(namespace: Namespace) -> str:
    conditions = namespace.status(JOB)["conditions"]
    return next(each["message"] for each in conditions if each["type"] == "Ready")
