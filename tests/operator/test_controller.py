"""One look at one job, on a fake API server that answers what it is told."""

from typing import Any

import pytest

from grpo_operator import errors
from grpo_operator.cache import Cache
from grpo_operator.client import Client
from grpo_operator.controller import Controller
from grpo_operator.kinds import JOBS, PODS, Kind, Manifest
from grpo_operator.memory import Memory

from .fake_world import IMAGE, NOW, UID, spec

KEY = ("default", "copy")


class FakeClient(Client):
    """Accepts every write but those named in `refused`; objects are given versions as they come."""

    def __init__(self) -> None:
        self.refused: dict[str, errors.KubernetesError] = {}
        self.num_writes = 0

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Manifest:
        return self._accept(kind, body)

    async def apply(self, kind: Kind, namespace: str, body: Manifest, *, subresource: str = "") -> Manifest:
        return self._accept(kind, body if kind != JOBS else a_job(status=body["status"]))

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        raise errors.NotFound(f"{kind.plural} {name} not found")

    def _accept(self, kind: Kind, body: Manifest) -> Manifest:
        self.num_writes += 1
        if kind.name in self.refused:
            raise self.refused[kind.name]
        version = str(100 + self.num_writes)
        known = {"uid": f"uid-{version}", "namespace": "default", "resourceVersion": version}
        return {**body, "metadata": known | body["metadata"] | {"resourceVersion": version}}


def a_job(**more: Any) -> dict[str, Any]:
    meta = {"name": "copy", "namespace": "default", "uid": UID, "generation": 1, "resourceVersion": "4"}
    return {"metadata": meta, "spec": spec().to_object(), **more}


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def cache() -> Cache:
    made = Cache()
    made.put(JOBS, a_job())
    return made


@pytest.fixture
def controller(client: FakeClient, cache: Cache) -> Controller:
    return Controller(client, cache, Memory(), runtime_image=IMAGE, clock=lambda: NOW)


async def test_a_new_job_is_looked_at_once_and_then_left_alone(controller, client, cache):
    await controller.reconcile(KEY)
    assert len(cache.pods(UID)) == 3
    await controller.reconcile(KEY)
    num_writes = client.num_writes
    deadline = spec().startup_deadline_seconds
    assert await controller.reconcile(KEY) == deadline  # nothing but the deadline is waited for
    assert client.num_writes == num_writes


async def test_a_refused_pod_is_tried_again_after_a_while_and_not_without_rest(controller, client):
    client.refused = {PODS.name: errors.Forbidden("exceeded quota: small")}
    waits = [await controller.reconcile(KEY) for _ in range(3)]
    assert waits[-1] == 10.0


async def test_a_job_that_is_gone_before_its_status_is_written_gets_no_children(controller, client, cache):
    client.refused = {JOBS.name: errors.Conflict("the uid is another")}
    assert await controller.reconcile(KEY) is None
    assert cache.pods(UID) == ()
