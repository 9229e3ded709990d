"""What no watch shows of Kueue is read once for all jobs, and what cannot be read is a sentence."""

from datetime import timedelta
from typing import Any

import pytest

from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import RESOURCE_FLAVORS, WORKLOAD_PRIORITY_CLASSES, Kind
from grpo_operator.observe.cache import Cache
from grpo_operator.read_queue import POSITIONS_SECONDS, read_queue

from . import fake_kueue as kueue
from .fake_cluster import NOW, FakeCluster, spec


class FakeKueueApi(Client):
    """Answers by the last part of a path, and remembers what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any]:
        path = kind.path(namespace, name)
        self.asked.append(path)
        found = self.answers.get(path.rpartition("/")[2], errors.NotFound("404 page not found"))
        if isinstance(found, Exception):
            raise found
        return dict(found)


def waiting() -> FakeCluster:
    cluster = FakeCluster(spec(queueName="team", scheduling={"priorityClass": "high"}))
    cluster.cluster_objects = {(WORKLOAD_PRIORITY_CLASSES, "high"): {"value": 1000}}
    cluster.settle()
    return cluster


async def test_the_priority_class_and_the_flavors_are_read_once():
    cluster, cache, client = waiting(), Cache(), FakeKueueApi(high={"value": 1000}, gpu={"spec": {}})
    kueue.admit(cluster.workloads[cluster.base])
    assert await read_queue(client, cache, cluster.observed(), now=NOW)
    assert client.asked == [
        "/apis/kueue.x-k8s.io/v1beta2/resourceflavors/gpu",
        "/apis/kueue.x-k8s.io/v1beta2/workloadpriorityclasses/high",
    ]
    assert cache.cluster_objects[RESOURCE_FLAVORS, "gpu"] == {"spec": {}}
    assert not await read_queue(client, cache, cluster.observed(), now=NOW)
    assert len(client.asked) == 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.NotFound("not found"), "there is no WorkloadPriorityClass high: create it"),
        (errors.Forbidden("no right"), "may not read WorkloadPriorityClass high"),
    ],
)
async def test_what_cannot_be_read_is_a_sentence(error: errors.KubernetesError, said: str):
    cluster, cache = waiting(), Cache()
    await read_queue(FakeKueueApi(high=error), cache, cluster.observed(), now=NOW)
    found = cache.cluster_objects[WORKLOAD_PRIORITY_CLASSES, "high"]
    assert isinstance(found, str) and said in found


async def test_the_position_in_the_queue_is_read_anew_from_time_to_time():
    cluster, cache = waiting(), Cache()
    items = [{"metadata": {"name": "other"}, "positionInLocalQueue": 0}]
    items.append({"metadata": {"name": cluster.base}, "positionInLocalQueue": 1})
    client = FakeKueueApi(high={"value": 1000}, pendingworkloads={"items": items})
    assert await read_queue(client, cache, cluster.observed(), now=NOW)
    asked = "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/default/localqueues/team/pendingworkloads"
    assert client.asked[-1] == asked
    assert cache.num_before(("default", cluster.base), queue="team") == 1
    assert not await read_queue(client, cache, cluster.observed(), now=NOW)
    later = NOW + timedelta(seconds=POSITIONS_SECONDS + 1)
    assert await read_queue(client, cache, cluster.observed(), now=later)


async def test_a_kueue_that_does_not_say_positions_keeps_nobody_waiting():
    cluster, cache = waiting(), Cache()
    client = FakeKueueApi(high={"value": 1000}, pendingworkloads=errors.Transient("HTTP 503"))
    assert await read_queue(client, cache, cluster.observed(), now=NOW)
    assert cache.num_before(("default", cluster.base), queue="team") is None


async def test_nothing_is_read_for_a_job_without_a_queue_or_an_operator_without_kueue():
    cluster, client = FakeCluster(spec()), FakeKueueApi()
    assert not await read_queue(client, Cache(), cluster.observed(), now=NOW)
    cluster = waiting()
    cluster.queue_problem = "this operator does not look at Kueue"
    assert not await read_queue(client, Cache(), cluster.observed(), now=NOW)
    assert client.asked == []
