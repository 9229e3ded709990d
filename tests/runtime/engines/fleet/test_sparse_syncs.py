"""A fleet whose engines are sent what changed, without models."""

import pytest
import torch
from fake_engine_server import FakeConnection, FakeEngine, fake_backend
from fleet_builder import unsynced_fleet_of
from weight_sources import FixedWeights

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.core import FleetCore
from grpo_runtime.report.metrics import sync_metrics
from grpo_runtime.rollouts.interface import SyncReport
from grpo_runtime.weight_sync.sparse.sender import ChangedWeights, sparse_backend
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.tag import TAG_BYTES

pytestmark = pytest.mark.usefixtures("pod_environment")


class SparseConnection(FakeConnection):
    """Delivers a digest of all weights, also where it is given what changed."""

    async def update(self, weights: HostCopy | ChangedWeights) -> None:
        await super().update(weights if isinstance(weights, HostCopy) else weights.whole)


async def sync(fleet: FleetCore, *, step: int, num_changed: int) -> SyncReport:
    weights = torch.zeros(10_000, dtype=torch.bfloat16)
    weights[:num_changed] = step
    return await fleet.sync(FixedWeights([("w", weights)]), version=PolicyVersion(1, step), probe=None)


async def test_the_metrics_say_what_share_of_the_bytes_changed() -> None:
    backend = sparse_backend(fake_backend(SparseConnection), full_every=3)
    async with unsynced_fleet_of(FakeEngine("one"), backend=backend) as fleet:
        ratios = []
        for step in range(5):
            report = await sync(fleet, step=step, num_changed=9000 if step == 4 else 100)
            metrics = sync_metrics(report)
            assert metrics["sync/bytes"] == 20_000
            assert metrics["sync/update_bytes"] == report.num_update_bytes
            ratios.append(metrics["sync/update_ratio"])
    # the first one, what changed, what changed, one of three, most of all
    changed = (aligned(100) + 200 + TAG_BYTES) / 20_000
    assert ratios == [1.0, pytest.approx(changed, abs=0.001), pytest.approx(changed, abs=0.001), 1.0, 1.0]


def aligned(num_bytes: int) -> int:
    return -(-num_bytes // 16) * 16


async def test_without_sparse_there_are_no_such_metrics() -> None:
    async with unsynced_fleet_of(FakeEngine("one")) as fleet:
        report = await sync(fleet, step=0, num_changed=1)
        assert report.num_update_bytes is None
        assert "sync/update_ratio" not in sync_metrics(report)
