"""One engine's weight sync, by everything that can go wrong on its way."""

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
import torch
from fake_engine_server import FAKE_BACKEND, FakeConnection, FakeEngine, fake_backend, sha256_of
from fake_vllm import RefusedError
from fleet_builder import GIVE_UP_SECONDS, PROBE, TOKENS, hang, raising, until
from one_engine_sync import OneEngineSync
from skipping_clock import SkippingClock
from weight_sources import FixedWeights

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines import routes
from grpo_runtime.engines.fleet.engine_client import EngineClient, open_session
from grpo_runtime.engines.fleet.engine_sync import SyncFailedError, SyncJob
from grpo_runtime.weight_sync.interface import NeedsPauseError
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

pytestmark = pytest.mark.usefixtures("pod_environment")


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine("a").serving() as served:
        yield served


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as opened:
        yield opened


def client_of(engine: FakeEngine, session: aiohttp.ClientSession, *, attempt: int = 1) -> EngineClient:
    return EngineClient(session, engine.address, tokens=TOKENS, attempt=attempt)


def sync_of(client: EngineClient) -> OneEngineSync:
    return OneEngineSync(client, backend=FAKE_BACKEND, timeout_seconds=GIVE_UP_SECONDS)


def packed(step: int) -> HostCopy:
    return HostCopy(FixedWeights([("w", torch.full((4,), float(step)))]))


def digest(step: int) -> str:
    return sha256_of(packed(step))


def job(step: int, *, attempt: int = 1) -> SyncJob:
    return SyncJob(version=PolicyVersion(attempt, step), weights=packed(step), probe=PROBE)


async def test_a_synced_engine_runs_with_the_weights_and_is_ready(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    await sync_of(client_of(engine, session)).run(job(3))
    assert (engine.vllm.weight_version, engine.vllm.weights) == ("1.3", digest(3))
    assert (engine.vllm.is_paused, engine.vllm.is_update_open) == (False, False)
    assert await engine.is_ready()


async def test_an_engine_is_paused_from_the_call_that_pauses_it_until_it_has_resumed(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    was_paused = []

    async def look() -> None:
        was_paused.append(engine.vllm.is_paused)

    for path in (routes.INIT_PATH, routes.FINISH_PATH, routes.LOGPROBS_PATH):
        engine.vllm.during[path] = look
    called_at: list[float] = []

    async def note() -> None:
        called_at.append(time.monotonic())

    engine.vllm.during |= {routes.PAUSE_PATH: note, routes.RESUME_PATH: note}
    began = time.monotonic()
    report = await sync_of(client_of(engine, session)).run(job(0))
    whole = time.monotonic() - began
    assert was_paused == [True, True, False]  # the probe comes after resume
    inside, after = ("init", "start", "transfer", "finish"), ("verify", "admit")
    assert {"pause", *inside, "resume", *after} == set(report.phase_seconds)
    paused = report.paused_seconds
    assert sum(report.phase_seconds[phase] for phase in inside) <= paused
    pause_called_at, resume_called_at = called_at
    assert resume_called_at - pause_called_at <= paused
    assert paused <= whole - sum(report.phase_seconds[phase] for phase in after)


async def test_an_engine_that_may_receive_while_it_serves_is_paused_to_apply_the_weights_only(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    was_paused = []

    async def look() -> None:
        was_paused.append(engine.vllm.is_paused)

    engine.vllm.stages = True
    for path in (routes.INIT_PATH, routes.UPDATE_PATH, routes.FINISH_PATH, routes.LOGPROBS_PATH):
        engine.vllm.during[path] = look
    client = client_of(engine, session)
    sync = OneEngineSync(client, backend=FAKE_BACKEND, timeout_seconds=GIVE_UP_SECONDS, transfers_first=True)
    report = await sync.run(job(3))
    assert was_paused == [False, False, True, False]
    assert (engine.vllm.weight_version, engine.vllm.weights) == ("1.3", digest(3))
    phases = ["init", "start", "transfer", "pause", "finish", "resume", "verify", "admit"]
    assert list(report.phase_seconds) == phases


async def test_an_engine_without_the_memory_to_receive_while_it_serves_is_paused_first(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    class NeedyConnection(FakeConnection):
        async def update(self, weights: HostCopy) -> None:
            if not engine.vllm.is_paused:
                raise NeedsPauseError("it has no memory for 16 bytes beside its model")
            await super().update(weights)

    engine.vllm.stages = True
    backend = fake_backend(NeedyConnection)
    client = client_of(engine, session)
    sync = OneEngineSync(client, backend=backend, timeout_seconds=GIVE_UP_SECONDS, transfers_first=True)
    await sync.run(job(1))
    assert (engine.vllm.weight_version, engine.vllm.weights) == ("1.1", digest(1))
    # and so from now on
    engine.vllm.reached.clear()
    await sync.run(job(2))
    assert engine.vllm.reached[0] == f"POST {routes.PAUSE_PATH}"
    assert engine.vllm.weights == digest(2)


async def test_an_update_left_open_by_an_earlier_trainer_is_ended_by_the_next(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    first = client_of(engine, session)
    await first.pause(mode="keep", clears_cache=True, timeout_seconds=GIVE_UP_SECONDS)
    await first.weight_verb(routes.START_PATH, {}, timeout_seconds=GIVE_UP_SECONDS)
    assert engine.vllm.is_update_open

    await sync_of(client_of(engine, session, attempt=2)).run(job(0, attempt=2))
    assert (engine.vllm.weight_version, engine.vllm.is_update_open) == ("2.0", False)


@pytest.mark.parametrize(
    "path",
    [
        routes.PAUSE_PATH,
        routes.INIT_PATH,
        routes.START_PATH,
        routes.UPDATE_PATH,
        routes.FINISH_PATH,
        routes.RESUME_PATH,
        routes.LOGPROBS_PATH,
        routes.WEIGHT_INFO_PATH,
    ],
)
async def test_after_a_sync_that_was_given_up_anywhere_the_next_one_succeeds(
    engine: FakeEngine, session: aiohttp.ClientSession, path: str
) -> None:
    sync = sync_of(client_of(engine, session))
    if path != routes.INIT_PATH:
        await sync.run(job(0))

    # the trainer gives up while the engine still answers: a cancelled sync leaves open what it has begun
    is_asked = asyncio.Event()

    async def hang_and_tell() -> None:
        is_asked.set()
        await hang()

    engine.vllm.during[path] = hang_and_tell
    running = asyncio.ensure_future(sync.run(job(1)))
    await until(lambda: is_asked.is_set() or running.done())
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    engine.vllm.during.clear()
    await sync.run(job(2))
    assert engine.vllm.weights == digest(2)
    assert (engine.vllm.weight_version, engine.vllm.is_paused) == ("1.2", False)


async def test_a_failed_transfer_names_its_phase_and_the_next_sync_has_a_connection_of_its_own(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    client = client_of(engine, session)
    sync = sync_of(client)
    await sync.run(job(0))
    # the engine has lost our connection
    info = {"init_info": {"sender": "another"}}
    await client.weight_verb(routes.INIT_PATH, info, timeout_seconds=GIVE_UP_SECONDS)
    with pytest.raises(SyncFailedError, match=r"^transfer: .*not connected to sender"):
        await sync.run(job(1))
    await sync.run(job(2))
    assert engine.vllm.weight_version == "1.2"


async def test_logprobs_beyond_the_tolerance_fail_every_sync_and_not_only_the_first(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    sync = sync_of(client_of(engine, session))
    for step, (logprob, is_close) in enumerate([(-1.00005, True), (-1.0002, False)]):
        engine.vllm.probe_logprob = logprob
        if is_close:
            report = await sync.run(job(step))
            assert report.probe_error == pytest.approx(5e-5)
        else:
            with pytest.raises(SyncFailedError, match=r"^verify: .* by 0\.0002 nats, more than 0\.0001$"):
                await sync.run(job(step))


@pytest.mark.parametrize("wrong", [0, 1])
async def test_every_core_of_an_engine_is_verified(
    wrong: int, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    client = client_of(engine, session)
    sync = OneEngineSync(client, backend=FAKE_BACKEND, timeout_seconds=GIVE_UP_SECONDS, cores_per_engine=2)
    await sync.run(job(1))
    engine.vllm.logprob_of_cores = {wrong: -1.5}
    with pytest.raises(SyncFailedError, match=r"^verify: .* by 0\.5 nats"):
        await sync.run(job(2))


async def test_an_engine_is_not_ready_before_it_is_verified(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    was_ready = []

    async def look() -> None:
        was_ready.append(await engine.is_ready())

    engine.vllm.during[routes.LOGPROBS_PATH] = look
    await sync_of(client_of(engine, session)).run(job(0))
    assert was_ready == [False]


async def test_a_refused_verb_is_a_failure_of_its_phase(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    engine.vllm.during[routes.FINISH_PATH] = raising(RefusedError("vLLM kept the old w"))
    with pytest.raises(SyncFailedError, match=r"^finish: .*vLLM kept the old w"):
        await sync_of(client_of(engine, session)).run(job(0))
    assert not await engine.is_ready()


async def test_a_sender_that_never_comes_back_is_given_up_at_the_deadline(
    engine: FakeEngine, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SkippingClock(monkeypatch)

    class HungConnection(FakeConnection):
        async def update(self, weights: object) -> None:
            clock.skip(GIVE_UP_SECONDS)
            await hang()

    backend = fake_backend(HungConnection)
    sync = OneEngineSync(client_of(engine, session), backend=backend, timeout_seconds=GIVE_UP_SECONDS)
    async with asyncio.timeout(3 * GIVE_UP_SECONDS):
        with pytest.raises(SyncFailedError, match=f"transfer: not done within {GIVE_UP_SECONDS:g} s"):
            await sync.run(job(0))
