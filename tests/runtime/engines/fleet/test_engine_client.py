"""Calls to one engine: whom they are for, whose they are, and what becomes of their failures."""

import asyncio
import functools
from collections.abc import AsyncIterator

import pytest
from fake_engine_server import FakeEngine
from fake_vllm import RefusedError
from fleet_builder import GIVE_UP_SECONDS, TOKENS, hang, raising

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.engine_client import (
    MAX_BYTES,
    EngineClient,
    EngineConflictError,
    EngineRefusedError,
    Load,
    open_session,
)
from grpo_runtime.engines.routes import IS_PAUSED_PATH, PAUSE_PATH
from grpo_runtime.rollouts.interface import EngineGoneError, EngineTimeoutError
from grpo_runtime.rollouts.wire import EngineCall

pytestmark = pytest.mark.usefixtures("pod_environment")

CALL = EngineCall((1, 2), {"seed": 5})


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine("a").serving() as served:
        yield served


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[EngineClient]:
    async with open_session() as session:
        yield EngineClient(session, engine.address, tokens=TOKENS, attempt=1)


async def test_a_call_for_one_process_is_refused_by_its_successor(
    engine: FakeEngine, client: EngineClient
) -> None:
    bound = client.for_instance((await client.identity(timeout_seconds=GIVE_UP_SECONDS)).instance)
    await bound.pause(mode="keep", clears_cache=True, timeout_seconds=GIVE_UP_SECONDS)
    engine.restart()
    with pytest.raises(EngineConflictError, match="engine a was restarted"):
        await bound.pause(mode="keep", clears_cache=True, timeout_seconds=GIVE_UP_SECONDS)
    assert not engine.vllm.is_paused


async def test_a_call_of_an_attempt_that_is_over_is_refused(engine: FakeEngine, client: EngineClient) -> None:
    await engine.note_attempt(attempt=2)
    with pytest.raises(EngineConflictError, match="attempt 1 is over"):
        await client.pause(mode="keep", clears_cache=True, timeout_seconds=GIVE_UP_SECONDS)


async def test_only_a_probe_passes_before_admission(client: EngineClient) -> None:
    with pytest.raises(EngineRefusedError, match=r"HTTP 503: .*not admitted") as refusal:
        await client.sample(CALL, max_bytes=MAX_BYTES)
    assert refusal.value.status == 503
    assert await client.logprobs(CALL, timeout_seconds=GIVE_UP_SECONDS)


async def test_an_answer_is_read_only_so_far(engine: FakeEngine, client: EngineClient) -> None:
    engine.vllm.weight_version = "1.0"
    await client.admit(PolicyVersion(1, 0), timeout_seconds=GIVE_UP_SECONDS)
    whole = await client.sample(CALL, max_bytes=MAX_BYTES)
    assert await client.sample(CALL, max_bytes=len(whole)) == whole
    with pytest.raises(EngineRefusedError, match=f"the answer has more than {len(whole) - 1} bytes"):
        await client.sample(CALL, max_bytes=len(whole) - 1)


async def test_an_engine_that_does_not_answer_is_given_up_at_the_deadline(
    engine: FakeEngine, client: EngineClient
) -> None:
    engine.vllm.during[IS_PAUSED_PATH] = hang
    async with asyncio.timeout(GIVE_UP_SECONDS):
        with pytest.raises(EngineTimeoutError, match=r"GET /is_paused on engine .*: no answer within 0\.2 s"):
            await client.is_paused(timeout_seconds=0.2)


async def test_an_engine_that_hangs_up_is_gone(engine: FakeEngine, client: EngineClient) -> None:
    engine.hang_up()
    with pytest.raises(EngineGoneError, match="GET /is_paused on engine"):
        await client.is_paused(timeout_seconds=GIVE_UP_SECONDS)


async def test_resume_undoes_a_pause(engine: FakeEngine, client: EngineClient) -> None:
    pause = functools.partial(client.pause, mode="keep", clears_cache=True)
    for verb, is_paused in ((pause, True), (client.resume, False)):
        await verb(timeout_seconds=GIVE_UP_SECONDS)
        assert engine.vllm.is_paused == await client.is_paused(timeout_seconds=GIVE_UP_SECONDS) == is_paused


async def test_what_an_engine_counts_is_summed_over_its_cores(
    engine: FakeEngine, client: EngineClient
) -> None:
    engine.vllm.num_generated, engine.vllm.num_sampling, engine.vllm.num_preemptions = 12, 3, 1
    for num_cores in (1, 2):
        engine.vllm.num_cores = num_cores
        load = await client.load(timeout_seconds=GIVE_UP_SECONDS)
        assert load == Load(12 * num_cores, 3 * num_cores, num_preemptions=num_cores)


async def test_an_engine_without_statistics_counts_nothing(engine: FakeEngine, client: EngineClient) -> None:
    engine.vllm.num_cores = 0
    assert await client.load(timeout_seconds=GIVE_UP_SECONDS) is None


async def test_calls_one_after_the_other_use_one_connection(engine: FakeEngine, client: EngineClient) -> None:
    for _ in range(3):
        await client.identity(timeout_seconds=GIVE_UP_SECONDS)
        await client.pause(mode="keep", clears_cache=True, timeout_seconds=GIVE_UP_SECONDS)
        await client.resume(timeout_seconds=GIVE_UP_SECONDS)
        assert not await client.is_paused(timeout_seconds=GIVE_UP_SECONDS)
    assert engine.num_connections == 1


async def test_a_refusal_of_the_guard_keeps_the_connection(engine: FakeEngine, client: EngineClient) -> None:
    with pytest.raises(EngineConflictError):
        await client.for_instance("another").pause(
            mode="keep", clears_cache=True, timeout_seconds=GIVE_UP_SECONDS
        )
    await client.pause(mode="keep", clears_cache=True, timeout_seconds=GIVE_UP_SECONDS)
    assert engine.num_connections == 1


@pytest.mark.parametrize("num_characters", [10, 10_000_000])
async def test_no_call_uses_the_connection_of_an_internal_error(
    engine: FakeEngine, client: EngineClient, num_characters: int
) -> None:
    """However much of the answer comes with its first bytes. vLLM's server closes the connection then."""
    engine.vllm.during[PAUSE_PATH] = raising(RefusedError("x" * num_characters))
    for number in (1, 2):
        with pytest.raises(EngineRefusedError, match=r"HTTP 500: .*xxxxxxxxxx"):
            await client.pause(mode="keep", clears_cache=True, timeout_seconds=GIVE_UP_SECONDS)
        assert engine.num_connections == number
    assert not await client.is_paused(timeout_seconds=GIVE_UP_SECONDS)
    assert engine.num_connections == 3
