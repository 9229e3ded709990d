"""An engine that is too slow for the others to share a weight sync with it."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

import aiohttp
import pytest
import torch
from fake_engine_server import FakeConnection, FakeEngine, fake_backend
from fleet_builder import (
    GIVE_UP_SECONDS,
    PROBE,
    TOKENS,
    fleet_of,
    fleet_settings_of,
    hang,
    requests,
    sync,
    until,
    versions,
)
from weight_sources import FixedWeights

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.engine_client import Address, EngineClient, open_session
from grpo_runtime.engines.fleet.engine_sync import EngineSync, EngineSyncReport, SyncJob
from grpo_runtime.engines.fleet.membership import Member, MemberState
from grpo_runtime.engines.fleet.roster import Roster
from grpo_runtime.engines.fleet.syncer import FleetSyncer
from grpo_runtime.engines.routes import LOGPROBS_PATH, UPDATE_PATH
from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.interface import Backend, Peer, SenderSettings, TooSlowError
from grpo_runtime.weight_sync.sender import PairwiseSender
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

pytestmark = pytest.mark.usefixtures("pod_environment")


def collective_backend(slow: set[str]) -> Backend[HostCopy]:
    """A backend whose engines share a transfer, for which those of these instances are too slow."""

    class SharedConnection(FakeConnection):
        def __init__(self, peer: Peer, *, is_too_slow_for: Mapping[str, Peer], name: str) -> None:
            super().__init__(peer)
            self._name, self._all = name, is_too_slow_for

        async def update(self, weights: HostCopy) -> None:
            if self._name in slow and len(self._all) > 1:
                raise TooSlowError("not done within 10 s")
            await super().update(weights)

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> PairwiseSender[HostCopy]:
        connections = {
            name: SharedConnection(peer, is_too_slow_for=engines, name=name) for name, peer in engines.items()
        }
        return PairwiseSender(connections, settings)

    return replace(fake_backend(), make_sender=make_sender, is_collective=True)


async def test_no_step_waits_for_an_engine_that_was_too_slow_for_others_and_yet_it_gets_the_weights() -> None:
    quick, slow = FakeEngine("quick"), FakeEngine("slow")
    too_slow: set[str] = set()
    async with fleet_of(quick, slow, backend=collective_backend(too_slow)) as fleet:
        too_slow.add(await slow.instance())
        report = await sync(fleet, step=1)
        assert report.synced == ("quick",)
        assert report.failed == {"slow": "transfer: not done within 10 s"}
        # alone it may take its time
        await until(lambda: fleet.counts().current == 2)

        may_go_on = asyncio.Event()
        slow.vllm.during[UPDATE_PATH] = may_go_on.wait
        report = await sync(fleet, step=2)
        assert (report.synced, report.failed) == (("quick",), {})
        may_go_on.set()
        await until(lambda: fleet.counts().current == 2)
        assert (slow.vllm.weights, slow.vllm.weight_version) == (quick.vllm.weights, "1.2")


async def test_once_a_sync_has_returned_no_engine_with_older_weights_is_given_work() -> None:
    quick, slow = FakeEngine("quick"), FakeEngine("slow")
    quick.vllm.stages = slow.vllm.stages = True
    too_slow: set[str] = set()
    backend = collective_backend(too_slow)
    async with fleet_of(quick, slow, backend=backend, is_asynchronous=True, max_in_flight=1) as fleet:
        too_slow.add(await slow.instance())
        await sync(fleet, step=1)
        await until(lambda: fleet.counts().current == 2)
        slow.vllm.during[UPDATE_PATH] = hang
        assert (await sync(fleet, step=2)).synced == ("quick",)
        rollouts = await fleet.generate(requests(8))
        assert ({rollout.engine for rollout in rollouts}, versions(rollouts)) == ({"quick"}, {"1.2"})


class ShortLag(Deadlines):
    def lag_seconds(self, took: float) -> float:
        return 0.2


async def test_an_engine_that_hangs_in_its_first_probe_does_not_hold_one_that_is_verified() -> None:
    engines = {"good": FakeEngine("good"), "hung": FakeEngine("hung")}
    is_asked = asyncio.Event()

    async def hang_and_tell() -> None:
        is_asked.set()
        await hang()

    engines["hung"].vllm.during[LOGPROBS_PATH] = hang_and_tell
    engines["good"].vllm.during[LOGPROBS_PATH] = is_asked.wait
    copy = HostCopy(FixedWeights([("w", torch.ones(4))]))
    async with (
        asyncio.timeout(GIVE_UP_SECONDS),
        engines["good"].serving(),
        engines["hung"].serving(),
        aiohttp.ClientSession() as session,
    ):
        clients = {
            name: EngineClient(session, engine.address, tokens=TOKENS, attempt=1)
            for name, engine in engines.items()
        }
        job = SyncJob(version=PolicyVersion(1, 0), weights=copy, probe=PROBE)
        engine_sync = EngineSync(clients, backend=fake_backend(), deadlines=ShortLag(10 * GIVE_UP_SECONDS))
        outcomes = await engine_sync.run(job)
        await engine_sync.close()
        assert isinstance(outcomes["good"], EngineSyncReport)
        assert str(outcomes["hung"]).startswith("verify: not done within 0.2")
        assert (await engines["good"].is_ready(), await engines["hung"].is_ready()) == (True, False)


class OneMember(Roster):
    """A roster with one engine that was given weights that were not the newest any more."""

    def members(self) -> list[Member]:
        now = time.monotonic()
        address = Address("127.0.0.1", 1)
        return [Member(address, now, state=MemberState.STALE, instance="a", retry_at=now + 3600.0)]


async def test_an_engine_that_came_late_is_left_alone_until_the_next_weights() -> None:
    """Else it would be busy with old ones when they come."""
    async with open_session() as session:
        roster = OneMember(fleet_settings_of(), session)
        syncer = FleetSyncer(
            roster, backend=fake_backend(), timeout_seconds=10.0, workers_per_engine=1, cores_per_engine=1
        )
        weights = FixedWeights([("w", torch.ones(4))])
        await syncer.prepare(weights, version=PolicyVersion(1, 2), probe=PROBE)
        assert syncer.start_syncs(is_called=False) == set()
        assert roster.busy == set()
        assert len(syncer.start_syncs(is_called=True)) == 1
        await syncer.close()
