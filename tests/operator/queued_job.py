"""A job in a queue of a fake Kueue, to be moved from one state to the next."""

from datetime import timedelta
from typing import Any, TypeVar

from grpo_operator.cluster.kinds import RESOURCE_FLAVORS, WORKLOAD_PRIORITY_CLASSES

from . import fake_kueue as kueue
from .fake_cluster import FakeCluster, report, spec

FLAVOR = {
    "spec": {
        "nodeLabels": {"example.test/gpu": "h100"},
        "nodeTaints": [{"key": "gpu", "effect": "NoSchedule"}],
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
}
Cluster = TypeVar("Cluster", bound=FakeCluster)
CLAIM = {"checkpoint": {"claimName": "runs"}}


def a_cluster(**changes: Any) -> FakeCluster:
    """A job in the queue `team`, which Kueue has not looked at."""
    return a_cluster_of(FakeCluster, **changes)


def a_cluster_of(kind: type[Cluster], **changes: Any) -> Cluster:
    cluster = kind(spec(**{"queueName": "team", **CLAIM, **changes}))
    cluster.cluster_objects = {
        (RESOURCE_FLAVORS, "gpu"): FLAVOR,
        (WORKLOAD_PRIORITY_CLASSES, "high"): {"value": 1000},
    }
    return cluster


def queued(**changes: Any) -> FakeCluster:
    cluster = a_cluster(**changes)
    cluster.settle()
    return cluster


def training(**changes: Any) -> FakeCluster:
    """A job that was admitted and trains."""
    cluster = queued(**changes)
    kueue.admit(workload(cluster))
    cluster.start()
    cluster.progress = report()
    cluster.settle()
    return cluster


def workload(cluster: FakeCluster, extra: int | None = None) -> dict[str, Any]:
    """The Workload of the job, or of one of its engines."""
    return cluster.workloads[cluster.base if extra is None else f"{cluster.base}-engine-{extra}"]


def change_spec(cluster: FakeCluster, **changes: Any) -> None:
    assert cluster.spec is not None
    cluster.spec = cluster.spec.model_copy(update=changes)
    cluster.generation += 1


def scale(cluster: FakeCluster, replicas: int) -> None:
    assert cluster.spec is not None and cluster.spec.rollout is not None
    change_spec(cluster, rollout=cluster.spec.rollout.model_copy(update={"replicas": replicas}))


def settle_with_pods(cluster: FakeCluster) -> None:
    """Until nothing changes, with a node for each pod and an end for each that is to go."""
    for _ in range(4):
        cluster.settle()
        cluster.run_all()
        cluster.vanish_deleted()
    cluster.settle()


def settle_without_room(cluster: FakeCluster) -> None:
    """Until the job has given back the nodes that are not enough, and its pods have ended."""
    while not cluster.status.is_held_back:
        cluster.now += timedelta(seconds=30)
        cluster.settle()
    cluster.vanish_deleted()
    cluster.settle()


def unreadable(cluster: FakeCluster) -> None:
    cluster.spec, cluster.problem = None, "spec.new is of a newer release"


def of_two_pods(**rollout: Any) -> dict[str, Any]:
    """An engine of two pods."""
    engine = {"engine": {"tensorParallelSize": 2}, "trainer": {"numNodes": 1}}
    return {**engine, "rollout": {"nodesPerReplica": 2, **rollout}}
