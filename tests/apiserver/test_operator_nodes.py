"""Engines of two rollout pods on a real API server: they come and go as one and are counted by the first."""

from typing import Any

import pytest

from grpo_api.contract.labels import NODE_INDEX

from .fake_kubelet import FakeKubelet
from .operator_harness import GROUP, Namespace, OperatorProcess, wait_for_pods, wait_until

pytestmark = pytest.mark.apiserver

TWO_PODS = {
    "engine": {"tensorParallelSize": 2, "maxModelLen": 64},
    "rollout": {"replicas": 2, "nodesPerReplica": 2},
}


def incarnations(pods: list[Any]) -> list[str]:
    """`0-i0`, `0-i0-1`."""
    return [pod.metadata.name.partition("-rollout-")[2] for pod in pods]


def started(namespace: Namespace, kubelet: FakeKubelet) -> list[Any]:
    """The rollout pods of a job that runs."""
    namespace.apply_job(**TWO_PODS)
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    kubelet.run(trainer)
    pods = wait_for_pods(namespace, "rollout", 4)
    for pod in pods:
        kubelet.run(pod)
    wait_until("the engines are counted", lambda: namespace.status()["rollout"]["summary"] == "2/2")
    return pods


def test_an_engine_that_loses_a_pod_is_replaced_whole_and_the_attempt_goes_on(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    pods = started(namespace, kubelet)
    assert incarnations(pods) == ["0-i0", "0-i0-1", "1-i0", "1-i0-1"]
    namespace.core.delete_namespaced_pod(pods[1].metadata.name, namespace.name)
    wanted = ["0-i1", "0-i1-1", "1-i0", "1-i0-1"]
    wait_until("both are replaced", lambda: incarnations(namespace.pods("rollout")) == wanted)
    kept = {pod.metadata.uid for pod in namespace.pods("rollout")}
    assert {pods[2].metadata.uid, pods[3].metadata.uid} < kept
    status = namespace.status()
    assert (status["attempt"], status["restarts"], status["rollout"]["desired"]) == (1, 0, 2)


def test_the_scale_subresource_counts_and_selects_replicas_and_not_pods(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    started(namespace, kubelet)
    scale = namespace.objects.get_namespaced_custom_object_scale(*GROUP, namespace.name, "grpojobs", "copy")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (2, 2)
    found = namespace.core.list_namespaced_pod(
        namespace.name, label_selector=scale["status"]["selector"]
    ).items
    assert sorted(incarnations(found)) == ["0-i0", "1-i0"]
    assert {pod.metadata.labels[NODE_INDEX] for pod in found} == {"0"}
    (service,) = (
        each
        for each in namespace.core.list_namespaced_service(namespace.name).items
        if "rollout" in each.metadata.name
    )
    selected = {f"{key}={value}" for key, value in service.spec.selector.items()}
    assert selected == set(scale["status"]["selector"].split(","))

    namespace.objects.patch_namespaced_custom_object_scale(
        *GROUP, namespace.name, "grpojobs", "copy", {"spec": {"replicas": 1}}
    )
    wait_until("a whole engine goes", lambda: incarnations(namespace.pods("rollout")) == ["0-i0", "0-i0-1"])


def test_the_number_of_pods_of_a_replica_cannot_change(namespace: Namespace):
    namespace.apply_job(**TWO_PODS)
    with pytest.raises(Exception, match="nodesPerReplica"):
        namespace.patch_job({"spec": {"rollout": {"nodesPerReplica": 1}}})
