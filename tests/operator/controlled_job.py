"""One job on the fake API server, and what a test says and reads about it."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from grpo_api.v1alpha1.job import API_VERSION, KIND
from grpo_operator.cluster.kinds import JOBS, PODS, KubeObject
from grpo_operator.controller import Controller
from grpo_operator.metrics import OperatorMetrics
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.process_state import ProcessState

from .fake_api_server import FakeApiServer
from .fake_cluster import IMAGE, NOW, UID, spec

KEY = ("default", "copy")


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


def a_job(**more: Any) -> KubeObject:
    meta = {"name": "copy", "namespace": "default", "uid": UID, "generation": 1}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec().to_object(), **more}


def controller_of(
    client: FakeApiServer,
    cache: Cache,
    state: ProcessState | None = None,
    *,
    clock: Callable[[], datetime] = lambda: NOW,
    metrics: OperatorMetrics | None = None,
) -> Controller:
    """An operator that sees what is in `cache`. Its clock stands still, unless a test moves it."""
    return Controller(
        client,
        cache,
        state or ProcessState(),
        runtime_image=IMAGE,
        clock=clock,
        chance=lambda: 0.5,
        metrics=metrics,
    )


async def look(controller: Controller, *, times: int = 3) -> None:
    """Reconcile the job so often."""
    for _ in range(times):
        await controller.reconcile(KEY)


def status_of(client: FakeApiServer) -> dict[str, Any]:
    """The job's status as the API server has it."""
    (job,) = client.objects(JOBS)
    status: dict[str, Any] = job["status"]
    return status


def condition_of(client: FakeApiServer, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in status_of(client)["conditions"] if c["type"] == kind)
    return found


def pod_names(client: FakeApiServer, role: str = "") -> list[str]:
    """Pods of a role by name, without those that are being deleted."""
    pods = [pod["metadata"] for pod in client.objects(PODS) if "deletionTimestamp" not in pod["metadata"]]
    return sorted(meta["name"] for meta in pods if f"-{role}" in meta["name"])


def run_pods(client: FakeApiServer) -> None:
    """Every pod is bound to a node, runs and is ready."""
    for pod in client.objects(PODS):
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        client.put(PODS, pod | {"spec": pod["spec"] | {"nodeName": "node-a"}, "status": ready})
