"""Waiting for room on a real API server: which pods come when, and nodes that are given back."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from grpo_operator.settings import HOLD_SECONDS

from .fake_kubelet import FakeKubelet
from .operator_harness import Namespace, OperatorProcess, wait_for_pods, wait_until

pytestmark = pytest.mark.apiserver

TWO_NODES = {"numNodes": 2, "processesPerNode": 1}
NO_GPU = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


def uids(pods: list[Any]) -> set[str]:
    return {pod.metadata.uid for pod in pods}


def test_rollout_pods_come_once_every_trainer_pod_is_bound(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    namespace.apply_job(trainer=TWO_NODES)
    first, second = wait_for_pods(namespace, "trainer", 2)
    kubelet.bind(first)
    kubelet.schedule(second, at=datetime.now(UTC), why=NO_GPU)
    wait_until(
        "it is said what the job waits for",
        lambda: namespace.condition("Running").get("reason") == "Unschedulable",
    )
    assert namespace.condition("RolloutReady")["reason"] == "WaitingForTrainer"
    assert namespace.pods("rollout") == []
    kubelet.bind(second)
    for pod in wait_for_pods(namespace, "rollout", 2):
        kubelet.bind(pod)
    wait_until("it waits no longer", lambda: "waitingForRoom" not in namespace.status())


def test_a_half_bound_gang_is_given_back_and_comes_again_without_a_counted_restart(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    namespace.apply_job(trainer=TWO_NODES)
    operator.start()
    first, second = wait_for_pods(namespace, "trainer", 2)
    long_ago = datetime.now(UTC) - timedelta(seconds=3 * HOLD_SECONDS)
    operator.kill()
    kubelet.bind(first)
    kubelet.schedule(first, at=long_ago)
    kubelet.schedule(second, at=long_ago, why=NO_GPU)
    set_waiting(namespace, since=long_ago, triedAt=long_ago)
    operator.start()
    wait_until("the nodes are given back", lambda: namespace.status().get("givenBack") == 1)
    wait_until("all pods are deleted", lambda: namespace.pods("trainer") == [])
    running = namespace.condition("Running")
    assert running["reason"] == "WaitingForRoom" and "nvidia.com/gpu" in running["message"]
    assert namespace.status()["phase"] == "Pending"
    operator.kill()
    kubelet.finish(first.metadata.name)
    set_waiting(namespace, since=long_ago, triedAt=long_ago, heldBackUntil=long_ago)
    operator.start()
    again = wait_for_pods(namespace, "trainer", 2)
    assert {pod.metadata.name for pod in again} == {first.metadata.name, second.metadata.name}
    assert not uids(again) & uids([first, second])
    assert {pod.metadata.labels["grpo.dev/given-back"] for pod in again} == {"1"}
    for pod in again:
        kubelet.run(pod)
    for pod in wait_for_pods(namespace, "rollout", 2):
        kubelet.run(pod)
    wait_until("the job runs", lambda: namespace.status()["phase"] == "Running")
    wait_until("it has room", lambda: "waitingForRoom" not in namespace.status())
    status = namespace.status()
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)


def set_waiting(namespace: Namespace, **times: datetime) -> None:
    """Move the times in status into the past, while no operator runs."""
    waiting = {key: f"{at:%Y-%m-%dT%H:%M:%SZ}" for key, at in times.items()}
    namespace.patch_status({"waitingForRoom": waiting})
