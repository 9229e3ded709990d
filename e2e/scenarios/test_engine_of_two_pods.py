"""An engine of two pods in a cluster: its workers meet, and a lost one takes the engine with it.

The tests share the job and run in the order they are written in.
"""

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.namespace import Namespace, copy_job

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

JOB = "two-pods"


@pytest.fixture(scope="module")
def job(namespace: Namespace) -> str:
    engine = {"tensorParallelSize": 2}
    rollout = {"replicas": 1, "nodesPerReplica": 2}
    namespace.apply(copy_job(JOB, engine=engine, rollout=rollout, algorithm={"steps": 20}))
    namespace.wait_for_step(JOB, 5)
    return JOB


def pods(namespace: Namespace) -> list[str]:
    """The living rollout pods, the one with the server first."""
    return sorted(pod["metadata"]["name"] for pod in namespace.pods_of(JOB, "rollout"))


def test_a_lost_pod_takes_its_engine_with_it_and_both_are_replaced(job: str, namespace: Namespace) -> None:
    before = pods(namespace)
    assert len(before) == 2 and namespace.status(job)["rollout"]["summary"] == "1/1"
    namespace.delete_pod(before[1], is_graceful=False)
    after = namespace.wait_until(
        lambda: len(found := pods(namespace)) == 2 and not {*found} & {*before} and found,
        "both pods to be replaced",
        timeout_seconds=60,
    )
    assert [name.partition("-rollout-")[2] for name in after] == ["0-i1", "0-i1-1"]


def test_the_job_completes_in_its_first_attempt(job: str, namespace: Namespace) -> None:
    namespace.wait_for_finish(job, timeout_seconds=600)
    assert condition(namespace.job(job), "Complete") == "True", namespace.describe()
    status = namespace.status(job)
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)
