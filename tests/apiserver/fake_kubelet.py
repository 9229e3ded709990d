"""A stand-in for the kubelet: it reports what a node would about pods that no node runs."""

import time
from datetime import UTC, datetime
from typing import Any

from .operator_harness import Namespace, wait_for_pods, wait_until


class FakeKubelet:
    """Reports what a kubelet would about pods that no node runs."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def bind(self, pod: Any, node: str = "fake-node") -> None:
        """Give the pod a node; from then on a deletion waits for this kubelet (`finish`)."""
        self._namespace.core.create_namespaced_binding(
            self._namespace.name,
            {
                "metadata": {"name": pod.metadata.name},
                "target": {"kind": "Node", "apiVersion": "v1", "name": node},
            },
            _preload_content=False,
        )

    def schedule(self, pod: Any, *, at: datetime, why: str = "") -> None:
        """Write when the pod got its node, or `why` it gets none."""
        scheduled = {"type": "PodScheduled", "status": "False" if why else "True"}
        scheduled |= {"reason": "Unschedulable", "message": why} if why else {}
        scheduled["lastTransitionTime"] = f"{at:%Y-%m-%dT%H:%M:%SZ}"
        self._report(pod, {"conditions": [scheduled]})

    def run(self, pod: Any, *, address: str = "127.0.0.1", image_id: str = "") -> None:
        """The pod has been scheduled, runs and is ready. It is not bound: a deletion does not wait for this
        kubelet, unless the test binds the pod."""
        running = {"running": {"startedAt": _now()}}
        self._report(
            pod,
            {
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "conditions": [
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": _now()},
                    {"type": "Ready", "status": "True"},
                ],
                "containerStatuses": [self._container(pod, running, ready=True, image_id=image_id)],
            },
        )

    def end(self, pod: Any, *, exit_code: int, message: str = "", reason: str = "Error") -> None:
        """The pod's container ends and is not restarted."""
        ended = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": _now()}
        self._report(
            pod,
            {
                "phase": "Succeeded" if exit_code == 0 else "Failed",
                "conditions": [{"type": "Ready", "status": "False"}],
                "containerStatuses": [self._container(pod, {"terminated": ended})],
            },
        )

    def evict(self, pod: Any, *, message: str) -> None:
        """The kubelet ends the pod by itself."""
        killed = {"exitCode": 137, "reason": "Error", "finishedAt": _now()}
        self._report(
            pod,
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": message,
                "containerStatuses": [self._container(pod, {"terminated": killed})],
            },
        )

    def wait(self, pod: Any, *, reason: str, message: str) -> None:
        """The pod's container cannot start."""
        waiting = {"waiting": {"reason": reason, "message": message}}
        self._report(pod, {"phase": "Pending", "containerStatuses": [self._container(pod, waiting)]})

    def finish(self, name: str) -> None:
        """The pod's processes are gone: what a kubelet says at the end of a deletion."""
        self._namespace.core.delete_namespaced_pod(
            name, self._namespace.name, grace_period_seconds=0, propagation_policy="Background"
        )

    def _container(
        self, pod: Any, state: dict[str, Any], *, ready: bool = False, image_id: str = ""
    ) -> dict[str, Any]:
        spec = pod.spec.containers[0]
        return {
            "name": spec.name,
            "image": spec.image,
            "imageID": image_id,
            "ready": ready,
            "restartCount": 0,
            "state": state,
        }

    def _report(self, pod: Any, status: dict[str, Any]) -> None:
        self._namespace.core.patch_namespaced_pod_status(
            pod.metadata.name, self._namespace.name, {"status": status}
        )


def all_pods(namespace: Namespace, kubelet: FakeKubelet) -> list[Any]:
    """The pods of a job of one trainer pod and two engines, which come once the trainer pod is scheduled."""
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    kubelet.schedule(trainer, at=datetime.now(UTC))
    return [trainer, *wait_for_pods(namespace, "rollout", 2)]


def running_job(namespace: Namespace, kubelet: FakeKubelet, **spec: Any) -> list[Any]:
    """A job whose pods all run; returns its trainer pods."""
    num_trainers = spec.get("trainer", {}).get("numNodes", 1)
    namespace.apply_job(**spec)
    trainers = wait_for_pods(namespace, "trainer", num_trainers)
    for pod in trainers:
        kubelet.run(pod)
    for pod in wait_for_pods(namespace, "rollout", 2):
        kubelet.run(pod)
    wait_until("the job runs", lambda: namespace.status().get("phase") == "Running")
    wait_until("the engines are counted", lambda: namespace.status()["rollout"]["summary"] == "2/2")
    return trainers


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
