"""A fleet some of whose engines misbehave, without models."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import torch
from fake_engine_server import FAKE_BACKEND, FakeEngine

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollout.engine_client import Address
from grpo_runtime.rollout.fleet_core import FleetCore
from grpo_runtime.rollout.fleet_settings import FleetSettings
from grpo_runtime.rollout.interface import GenerateRequest, SyncReport
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.registry import BACKENDS

SYNC_TIMEOUT_SECONDS = 2.0


@pytest.fixture(autouse=True)
def fake_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, FAKE_BACKEND.name, FAKE_BACKEND)


@asynccontextmanager
async def fleet_of(*engines: FakeEngine, others: Sequence[Address] = ()) -> AsyncIterator[FleetCore]:
    """A fleet of served engines, which have the weights of step 0; `others` are listed beside them."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine.serving())
        fleet = FleetCore(
            FleetSettings(
                hosts=(*others, *(engine.address for engine in engines)),
                desired=len(engines),
                attempt=1,
                tokens=Tokens(data="data", admin="admin"),
                temperature=1.0,
                max_tokens=4,
                sync_timeout_seconds=SYNC_TIMEOUT_SECONDS,
                backend=FAKE_BACKEND.name,
                empty_wait_seconds=10.0,
                heartbeat_seconds=0.05,
            )
        )
        stack.push_async_callback(fleet.close)
        await sync(fleet, step=0)
        yield fleet


async def sync(fleet: FleetCore, *, step: int) -> SyncReport:
    return await fleet.sync(lambda: [("w", torch.zeros(4))], version=PolicyVersion(1, step), probe=None)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_an_engine_that_failed_before_keeps_nobody_waiting_while_it_is_tried_again() -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad) as fleet:
        bad.is_pause_hanging = True
        assert set((await sync(fleet, step=1)).failed) == {"bad"}
        tried = bad.num_pauses
        await until(lambda: bad.num_pauses > tried)

        started = time.monotonic()
        report = await sync(fleet, step=2)
        assert report.synced == ("good",)
        assert time.monotonic() - started < SYNC_TIMEOUT_SECONDS / 2


async def test_requests_of_an_engine_that_fell_out_of_the_fleet_go_to_another_one() -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad) as fleet:
        bad.is_generate_hanging = True
        work = asyncio.ensure_future(
            fleet.generate([GenerateRequest(prompt_ids=(4,), seed=seed) for seed in range(8)])
        )
        await until(lambda: len(bad.requests) == 4)
        # one request fails; the sync that follows leaves the engine paused, with the others in it
        bad.is_pause_hanging = True
        fleet.distrust("process of bad", RuntimeError("a bad answer"))
        rollouts = await asyncio.wait_for(work, 10)
        assert {rollout.engine for rollout in rollouts} == {"good"}


async def test_an_address_that_accepts_and_never_answers_keeps_nobody_waiting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = Address("127.0.0.1", mute.getsockname()[1])
        began = time.monotonic()
        async with fleet_of(FakeEngine("a"), FakeEngine("b"), others=[address]) as fleet:
            assert fleet.counts().current == 2
        # one look may take 10 s; nothing here waits for as much as one
        assert time.monotonic() - began < 5
