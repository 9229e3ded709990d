"""A gang of three trainer pods with room for two: the cluster's scheduler binds two, and coscheduling none
until there is room for all."""

from collections.abc import Iterator

import pytest

from grpo_demo.follow import condition
from grpo_demo.target import Target
from grpo_scenarios.gang_scheduler import CRD, gang_scheduler
from grpo_scenarios.namespace import Namespace, Object, copy_job
from grpo_scenarios.slots import set_slots

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

CHART_VALUES = {"gangs[0]": "Coscheduling"}
SLOT = "grpo.dev/test-gang-slot"


@pytest.fixture(autouse=True)
def _slots_are_removed(target: Target) -> Iterator[None]:
    yield
    set_slots(target, None, resource=SLOT)


def test_without_a_gang_two_of_three_pods_get_their_nodes(namespace: Namespace) -> None:
    set_slots(namespace.target, 2, resource=SLOT)
    namespace.apply(three_trainer_pods("apart"))
    namespace.wait_until(lambda: len(bound(namespace, "apart")) == 2, "two bound pods", timeout_seconds=30)
    namespace.wait_until(lambda: len(turned_away(namespace, "apart")) == 1, "the third", timeout_seconds=30)
    namespace.kubectl("delete", "grpojob", "apart")


def test_with_coscheduling_none_gets_a_node_until_there_is_room_for_all(namespace: Namespace) -> None:
    set_slots(namespace.target, 2, resource=SLOT)
    namespace.apply(three_trainer_pods("together", scheduling={"gang": "Coscheduling"}))
    said = namespace.wait_until(
        lambda: (
            running(namespace, "together").get("reason") == "GangUnavailable"
            and running(namespace, "together")["message"]
        ),
        "what is not installed",
        timeout_seconds=30,
    )
    assert "scheduler-plugins" in said and "install that" in said
    with gang_scheduler(namespace.target):
        namespace.wait_until(
            lambda: len(turned_away(namespace, "together")) == 3, "three that wait", timeout_seconds=90
        )
        assert bound(namespace, "together") == []
        assert "together" in namespace.kubectl("get", CRD)

        set_slots(namespace.target, 3, resource=SLOT)
        namespace.wait_until(
            lambda: len(bound(namespace, "together")) == 3, "three bound pods", timeout_seconds=40
        )
        status = namespace.wait_for_finish("together")
        assert condition(namespace.job("together"), "Complete") == "True", namespace.describe()
        assert (status["attempt"], status["restarts"], status.get("givenBack", 0)) == (1, 0, 0)
        namespace.wait_until(
            lambda: "together" not in namespace.kubectl("get", CRD),
            "the end of its group",
            timeout_seconds=60,
        )


def three_trainer_pods(name: str, **sections: Object) -> Object:
    limits = {"memory": "4Gi", SLOT: "1"}
    resources = {"limits": limits, "requests": {"cpu": "100m", "memory": "512Mi"}}
    trainer = {"numNodes": 3, "processesPerNode": 1, "resources": resources}
    return copy_job(name, algorithm={"steps": 5}, trainer=trainer, rollout={"replicas": 1}, **sections)


def bound(namespace: Namespace, job: str) -> list[str]:
    """Trainer pods that have a node."""
    pods = namespace.pods_of(job, "trainer")
    return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]


def turned_away(namespace: Namespace, job: str) -> list[str]:
    """Trainer pods of which a scheduler says that they get no node now."""
    return [
        pod["metadata"]["name"]
        for pod in namespace.pods_of(job, "trainer")
        for each in pod["status"].get("conditions", ())
        if (each["type"], each["status"]) == ("PodScheduled", "False")
    ]


def running(namespace: Namespace, job: str) -> Object:
    """The condition Running of a job."""
    conditions = namespace.status(job).get("conditions", ())
    return next((each for each in conditions if each["type"] == "Running"), {})
