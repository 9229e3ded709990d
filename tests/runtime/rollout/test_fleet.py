"""The fleet's own thread, over engines without models."""

import threading
from dataclasses import replace

import pytest
import torch
from fake_engine_server import FAKE_BACKEND, FakeEngine, FakeSender

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollout import fleet as fleet_module
from grpo_runtime.rollout.fleet import Fleet
from grpo_runtime.rollout.fleet_settings import FleetSettings
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.registry import BACKENDS


class FakeStuckSender(FakeSender):
    """Never comes back from letting go, and blocks its thread meanwhile."""

    async def shutdown(self) -> None:
        threading.Event().wait()


async def test_a_transfer_that_never_lets_go_does_not_hold_up_a_run_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    backend = replace(FAKE_BACKEND, name="stuck", make_sender=lambda channel, settings: FakeStuckSender())
    monkeypatch.setitem(BACKENDS, backend.name, backend)
    monkeypatch.setattr(fleet_module, "CLOSE_SECONDS", 0.2)
    async with FakeEngine("a").serving() as engine:
        fleet = Fleet(
            FleetSettings(
                hosts=(engine.address,),
                desired=1,
                attempt=1,
                tokens=Tokens(data="data", admin="admin"),
                temperature=1.0,
                max_tokens=4,
                sync_timeout_seconds=2,
                backend=backend.name,
                heartbeat_seconds=0.05,
            )
        )
        await fleet.sync(lambda: [("w", torch.zeros(4))], version=PolicyVersion(1, 0), probe=None)
        await fleet.close()
    # who reads the log sees where it is stuck
    assert "in shutdown" in capfd.readouterr().err
