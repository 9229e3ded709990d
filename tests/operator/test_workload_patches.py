"""Patches of Workloads hold for exactly the state that they were planned from."""

from typing import Any

from grpo_operator.apply.workloads import patch_workloads
from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import Kind
from grpo_operator.observe.cache import Cache
from grpo_operator.plan.draft import WorkloadPatch

from .fake_cluster import UID, job_view

PATCH = WorkloadPatch("copy-1", "7", ({"type": "Finished", "status": "True"},), {"admission": None})


def a_workload(version: str) -> dict[str, Any]:
    owner = {"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "name": "copy", "uid": UID}
    meta = {"name": "copy-1", "namespace": "default", "uid": "1", "resourceVersion": version}
    return {"kind": "Workload", "spec": {"podSets": []}, "metadata": {**meta, "ownerReferences": [owner]}}


class FakeWorkloads(Client):
    """One Workload in this version, or none."""

    def __init__(self, version: str | None) -> None:
        self.version = version
        self.bodies: list[dict[str, Any]] = []

    async def merge_status(
        self, kind: Kind, namespace: str, name: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        if self.version is None:
            raise errors.NotFound("not found")
        if body["metadata"]["resourceVersion"] != self.version:
            raise errors.Conflict("the object has been modified")
        self.bodies.append(body)
        return a_workload("8")

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any]:
        return a_workload(str(self.version))


async def test_the_whole_list_of_conditions_is_written_with_the_version():
    client, cache = FakeWorkloads("7"), Cache()
    assert not await patch_workloads(client, cache, job_view(), [PATCH])
    assert client.bodies == [
        {
            "metadata": {"resourceVersion": "7"},
            "status": {"conditions": [{"type": "Finished", "status": "True"}], "admission": None},
        }
    ]
    (found,) = cache.workloads(("default", UID))
    assert found["metadata"]["resourceVersion"] == "8"


async def test_where_kueue_has_written_first_the_newer_state_is_planned_from():
    cache = Cache()
    assert await patch_workloads(FakeWorkloads("9"), cache, job_view(), [PATCH])
    (found,) = cache.workloads(("default", UID))
    assert found["metadata"]["resourceVersion"] == "9"


async def test_a_workload_that_is_gone_needs_no_patch():
    assert not await patch_workloads(FakeWorkloads(None), Cache(), job_view(), [PATCH])
