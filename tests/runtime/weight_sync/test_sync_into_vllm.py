"""The same contract with a real engine on the other end."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import aiohttp
import dying_trainer
import pytest
from one_engine_sync import OneEngineSync
from policy_builder import changed_policy, probe_of, weights_of
from polling import wait_until
from receiver_harness import AlteredCopy, accident, flip_a_bit, stall

from grpo_api.contract.endpoints import ROLLOUT_LIVE_PATH, ROLLOUT_READY_PATH
from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.engines.fleet.engine_calls import AnswerLimits, Bundle, read_rollouts, sampling_call
from grpo_runtime.engines.fleet.engine_client import (
    MAX_BYTES,
    Address,
    EngineClient,
    EngineConflictError,
    open_session,
)
from grpo_runtime.engines.fleet.engine_sync import SyncFailedError, SyncJob
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.save import save_policy
from grpo_runtime.model.weights import named_weights
from grpo_runtime.rollouts.interface import EngineTimeoutError
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.registry import GLOO
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

pytestmark = pytest.mark.engine


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as opened:
        yield opened


def client_of(engine: Any, session: aiohttp.ClientSession, *, attempt: int) -> EngineClient:
    # the admin may sample before the engine is admitted
    tokens = Tokens(data=engine.admin_token, admin=engine.admin_token)
    return EngineClient(session, Address("127.0.0.1", engine.port), tokens=tokens, attempt=attempt)


def job_of(engine: Any, *, seed: int, attempt: int) -> SyncJob:
    policy = changed_policy(engine.model_dir, seed=seed)
    weights = HostCopy(weights_of(policy))
    return SyncJob(version=PolicyVersion(attempt, seed), weights=weights, probe=probe_of(policy))


def sync_of(client: EngineClient, *, timeout_seconds: float = 40.0) -> OneEngineSync:
    return OneEngineSync(client, backend=GLOO, timeout_seconds=timeout_seconds)


async def sample(client: EngineClient) -> tuple[object, ...]:
    """One completion and the version that sampled it."""
    bundle = Bundle(prompt_ids=(10, 20, 30), seed=7, num_samples=1)
    call = sampling_call(bundle, sampling=SamplingSpec(max_tokens=12))
    async with asyncio.timeout(60):
        answer = await client.sample(call, max_bytes=MAX_BYTES)
    (rollout,) = read_rollouts(answer, bundle=bundle, engine="engine", limits=AnswerLimits(4096))
    return rollout.completion_ids, rollout.rollout_logprobs, rollout.versions


async def test_a_failed_transfer_leaves_the_old_weights_and_an_engine_that_works(
    engine: Any, attempt: int, session: aiohttp.ClientSession
) -> None:
    client = client_of(engine, session, attempt=attempt)
    sync = sync_of(client)
    await sync.run(job_of(engine, seed=1, attempt=attempt))
    before = await sample(client)
    good = job_of(engine, seed=2, attempt=attempt)
    source = weights_of(changed_policy(engine.model_dir, seed=2))
    broken = replace(good, weights=AlteredCopy(source, alter=flip_a_bit, buffer_bytes=4096))

    with pytest.raises(SyncFailedError, match="not the bytes announced"):
        await sync.run(broken)

    await client.resume(timeout_seconds=10)
    assert await sample(client) == before
    await sync.run(good)
    assert await sample(client) != before
    await sync.close()


async def test_probes_answer_while_a_stalled_transfer_blocks_the_engine(
    engine: Any, attempt: int, session: aiohttp.ClientSession
) -> None:
    client = client_of(engine, session, attempt=attempt)
    good = job_of(engine, seed=1, attempt=attempt)
    sync = sync_of(client)
    await sync.run(good)
    await sync.close()
    before = await sample(client)
    until = threading.Event()
    source = weights_of(changed_policy(engine.model_dir, seed=2))
    weights = AlteredCopy(source, alter=accident(stall(until), before=0), buffer_bytes=4096)
    transfer = asyncio.ensure_future(
        sync_of(client, timeout_seconds=16.0).run(replace(good, weights=weights))
    )
    try:
        # it stands still for a quarter of the deadline
        with pytest.raises(EngineTimeoutError):
            while True:
                # answered by the engine core, which is busy receiving
                await client.is_paused(timeout_seconds=0.5)
        for path in (ROLLOUT_LIVE_PATH, ROLLOUT_READY_PATH):
            async with session.get(engine.url(path), timeout=aiohttp.ClientTimeout(total=3)) as answer:
                assert answer.status == 200
        assert (await client.identity(timeout_seconds=3)).is_live
        # nobody but the deadline ends it: the sender hangs for as long as we wait
        with pytest.raises(SyncFailedError, match="transfer"):
            await transfer
    finally:
        until.set()

    await client.resume(timeout_seconds=10)
    assert await sample(client) == before


async def test_weights_that_are_not_the_trainers_are_found_out_by_the_probe(
    engine: Any, attempt: int, session: aiohttp.ClientSession
) -> None:
    client = client_of(engine, session, attempt=attempt)
    sync = sync_of(client)
    job = job_of(engine, seed=1, attempt=attempt)
    others = job_of(engine, seed=2, attempt=attempt)

    with pytest.raises(SyncFailedError, match="verify: its logprobs differ from the trainer's by"):
        await sync.run(replace(job, probe=others.probe))

    identity = await client.identity(timeout_seconds=10)
    assert identity.version == ""


async def test_after_a_trainer_killed_in_mid_transfer_the_next_attempt_syncs(
    engine: Any, attempts: Iterator[int], session: aiohttp.ClientSession
) -> None:
    first, killed, next_one = next(attempts), next(attempts), next(attempts)
    client = client_of(engine, session, attempt=first)
    sync = sync_of(client)
    await sync.run(job_of(engine, seed=1, attempt=first))
    before = await sample(client)
    await sync.close()

    arguments = [dying_trainer.__file__, str(engine.model_dir), str(engine.port), str(killed)]
    secrets = {"DATA_TOKEN": engine.data_token, "ADMIN_TOKEN": engine.admin_token}
    child = await asyncio.create_subprocess_exec(sys.executable, *arguments, env=os.environ | secrets)
    assert await asyncio.wait_for(child.wait(), 60) == -signal.SIGKILL

    successor = client_of(engine, session, attempt=next_one)
    await successor.resume(timeout_seconds=20)
    assert await sample(successor) == before
    sync = sync_of(successor)
    report = await sync.run(job_of(engine, seed=3, attempt=next_one))
    await sync.close()
    assert report.probe_error < 1e-4
    with pytest.raises(EngineConflictError, match=f"attempt {killed} is over"):
        await client_of(engine, session, attempt=killed).resume(timeout_seconds=10)


async def test_an_update_left_open_by_an_earlier_trainer_is_ended_by_the_next(
    engine: Any, attempts: Iterator[int], session: aiohttp.ClientSession
) -> None:
    first, second = next(attempts), next(attempts)
    client = client_of(engine, session, attempt=first)
    await client.pause(mode="keep", clears_cache=True, timeout_seconds=10)
    await client.weight_verb("/start_weight_update", {}, timeout_seconds=10)

    sync = sync_of(client_of(engine, session, attempt=second))
    report = await sync.run(job_of(engine, seed=4, attempt=second))
    await sync.close()
    assert report.probe_error < 1e-4


@pytest.fixture(scope="module")
def tied_engine(engine: Any, start: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An engine whose head is its embedding, which vLLM's CPU build packs once and then forgets.

    The last test here kills its core."""
    folder = tmp_path_factory.mktemp("tied")
    policy = load_policy(engine.model_dir, dtype="float32")
    policy.config.tie_word_embeddings = True
    policy.tie_weights()
    save_policy(policy, tokenizer=load_tokenizer(engine.model_dir), into=folder / "model")
    with start(folder, name="engine-tied", model_source=f"file://{folder / 'model'}") as started:
        yield started


async def test_a_tied_head_follows_its_embedding(
    tied_engine: Any, attempt: int, session: aiohttp.ClientSession
) -> None:
    policy = changed_policy(tied_engine.folder / "model", seed=5)
    job = SyncJob(
        version=PolicyVersion(attempt, 1), weights=HostCopy(weights_of(policy)), probe=probe_of(policy)
    )
    assert "lm_head.weight" not in dict(named_weights(policy))
    sync = sync_of(client_of(tied_engine, session, attempt=attempt))
    report = await sync.run(job)
    await sync.close()
    assert report.probe_error < 1e-4


def test_an_engine_whose_core_has_died_says_so_and_ends(tied_engine: Any) -> None:
    """The last test of this file."""
    (core,) = tied_engine.core_pids()
    os.kill(core, signal.SIGKILL)
    wait_until(lambda: not tied_engine.is_live(), "the engine says that it is dead")
    assert tied_engine.process.wait(60) == ExitCode.UNEXPECTED
    message = TerminationMessage.model_validate_json(tied_engine.termination_log.read_text())
    assert message.message == "the vLLM engine died; see this container's log"
