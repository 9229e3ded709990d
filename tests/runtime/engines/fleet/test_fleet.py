"""The fleet's own thread, over engines without models."""

import threading

import pytest
import torch
from fake_engine_server import FakeConnection, FakeEngine, fake_backend
from fleet_builder import fleet_settings_of
from weight_sources import FixedWeights

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.fleet import Fleet


class HungConnection(FakeConnection):
    """Never comes back from letting go, and blocks its thread meanwhile."""

    async def shutdown(self) -> None:
        threading.Event().wait()


@pytest.mark.usefixtures("pod_environment")
async def test_a_transfer_that_never_lets_go_does_not_hold_up_a_run_that_has_ended(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with FakeEngine("a").serving() as engine:
        fleet = Fleet(
            fleet_settings_of(engine.address), backend=fake_backend(HungConnection), close_seconds=0.2
        )
        await fleet.sync(FixedWeights([("w", torch.zeros(4))]), version=PolicyVersion(1, 0), probe=None)
        await fleet.close()
    # who reads the log sees where it is stuck
    assert "in shutdown" in capfd.readouterr().err
