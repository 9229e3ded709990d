"""A pod that its node evicted for its own use of storage caused that itself: the attempt is counted."""

from typing import Any

import pytest

from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.observed import PodView
from grpo_operator.observe.pod_view import pod_view

from .fake_cluster import FakeCluster, spec

OWN_LIMIT = [
    'Container trainer exceeded its local ephemeral storage limit "1Gi". ',
    "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
    'Usage of EmptyDir volume "cache" exceeds the limit "1Gi". ',
]
PRESSURE = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 2Gi, available: 1Gi. "
    "Container trainer was using 10Gi, request is 0, has larger consumption of ephemeral-storage. "
)


def evicted(message: str, **status: Any) -> PodView:
    """The trainer pod as its kubelet reports it: evicted, its container killed."""
    killed = {"exitCode": 137, "reason": "Error", "finishedAt": "2026-11-21T12:00:00Z"}
    item = {
        "metadata": {"name": "copy-abc123-trainer-a1-0", "uid": "u"},
        "spec": {"nodeName": "node-a", "restartPolicy": "Never"},
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "message": message,
            "containerStatuses": [{"name": "trainer", "restartCount": 0, "state": {"terminated": killed}}],
            **status,
        },
    }
    view = pod_view(item)
    assert view is not None
    return view


def evict(cluster: FakeCluster, view: PodView) -> None:
    """The running attempt's pod 0 is evicted like this."""
    cluster.change(
        cluster.pod(f"trainer-a{cluster.status.attempt}-0"),
        phase=view.phase,
        is_ready=False,
        termination=view.termination,
        disruption=view.disruption,
        has_exceeded_own_limit=view.has_exceeded_own_limit,
    )
    cluster.settle()


@pytest.mark.parametrize("message", OWN_LIMIT, ids=["container", "pod", "emptyDir"])
def test_an_eviction_for_the_pods_own_storage_is_counted_and_names_the_fix(message: str):
    cluster = FakeCluster(spec(failurePolicy={"maxRestarts": 1})).start()
    evict(cluster, evicted(message))
    assert (cluster.status.attempt, cluster.status.restarts, cluster.status.disruptions) == (2, 1, 0)
    failure = cluster.status.last_failure
    assert failure is not None
    assert (failure.reason, failure.exit_code, failure.node) == ("Evicted", 137, "node-a")
    assert message.strip() in failure.message and "trainer.resources.limits" in failure.message
    cluster.run_all()
    cluster.settle()
    evict(cluster, evicted(message))
    assert cluster.status.phase == Phase.FAILED
    assert "maxRestarts (1) is used up" in cluster.condition(ConditionType.FAILED).message


@pytest.mark.parametrize(
    "view",
    [
        evicted(PRESSURE),
        evicted("Pod was rejected: Node was low on resource: memory"),
        evicted(
            OWN_LIMIT[0],
            conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
        ),
    ],
    ids=["node pressure", "refused by the node", "drained at the same time"],
)
def test_any_other_eviction_is_not_counted(view: PodView):
    cluster = FakeCluster(spec(failurePolicy={"maxRestarts": 0})).start()
    evict(cluster, view)
    assert (cluster.status.attempt, cluster.status.restarts, cluster.status.disruptions) == (2, 0, 1)


def test_the_peers_of_an_evicted_pod_are_not_the_cause():
    cluster = FakeCluster(spec(trainer={"numNodes": 2})).start()
    lost = evicted(PRESSURE)
    cluster.change(cluster.pod("trainer-a1-1"), phase="Failed", disruption=lost.disruption)
    evict(cluster, evicted(OWN_LIMIT[1]))
    assert cluster.status.last_failure is not None
    assert cluster.status.last_failure.pod == cluster.pod("trainer-a1-0")
    assert cluster.status.restarts == 1
