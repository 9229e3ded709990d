"""A real engine that gets new weights while it samples. Transformers judges every token."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from engine_numbers import metric, until_sampled
from one_engine_sync import OneEngineSync
from policy_builder import changed_policy, logprobs, probe_of, weights_of
from receiver_harness import Alter, AlteredCopy, accident, flip_a_bit
from transformers import PreTrainedModel

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.engines.fleet.engine_calls import (
    AnswerLimits,
    Bundle,
    num_recomputed,
    read_rollouts,
    require_versions,
    sampling_call,
)
from grpo_runtime.engines.fleet.engine_client import MAX_BYTES, Address, EngineClient, open_session
from grpo_runtime.engines.fleet.engine_sync import SyncFailedError, SyncJob
from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.registry import GLOO

pytestmark = pytest.mark.engine
MAX_TOKENS = 1500
LONG = Bundle(prompt_ids=(10, 20, 30), seed=7, num_samples=2)


@pytest.fixture
async def client(asynchronous_engine: Any, attempt: int) -> AsyncIterator[EngineClient]:
    engine = asynchronous_engine
    # the admin may sample before the engine is admitted
    tokens = Tokens(data=engine.admin_token, admin=engine.admin_token)
    async with open_session() as session:
        yield EngineClient(session, Address("127.0.0.1", engine.port), tokens=tokens, attempt=attempt)


def sync_of(client: EngineClient, *, transfers_first: bool) -> OneEngineSync:
    return OneEngineSync(client, backend=GLOO, timeout_seconds=20.0, transfers_first=transfers_first)


def job_of(
    policy: PreTrainedModel, version: PolicyVersion, *, alter: Alter = lambda buffers: buffers
) -> SyncJob:
    weights = AlteredCopy(weights_of(policy), alter=alter, buffer_bytes=4096)
    return SyncJob(version=version, weights=weights, probe=probe_of(policy))


async def sample_long(client: EngineClient, *, salt: str) -> list[Rollout]:
    """Completions that take the engine seconds."""
    call = sampling_call(LONG, sampling=SamplingSpec(max_tokens=MAX_TOKENS), cache_salt=salt)
    call = replace(call, parameters={**call.parameters, "ignore_eos": True})
    answer = await client.sample(call, max_bytes=MAX_BYTES)
    return read_rollouts(answer, bundle=LONG, engine="engine", limits=AnswerLimits(MAX_TOKENS))


@pytest.mark.parametrize("transfers_first", [True, False])
async def test_every_token_has_the_logprob_of_the_weights_that_its_version_says(
    transfers_first: bool, asynchronous_engine: Any, client: EngineClient, attempt: int
) -> None:
    policies = [changed_policy(asynchronous_engine.model_dir, seed=seed) for seed in (70, 71)]
    old, new = (PolicyVersion(attempt, step) for step in range(2))
    sync = sync_of(client, transfers_first=transfers_first)
    await sync.run(job_of(policies[0], old))
    preempted = await metric(asynchronous_engine, "vllm:num_preemptions_total", attempt=attempt)
    sampling = asyncio.ensure_future(sample_long(client, salt=str(old)))
    await until_sampled(client, 100, while_running=sampling)
    may_go_on = threading.Event()
    if not transfers_first:
        # a paused engine samples nothing while it receives
        may_go_on.set()
    job = job_of(policies[1], new, alter=accident(lambda: may_go_on.wait(20)))
    syncing = asyncio.ensure_future(sync.run(job))
    if transfers_first:
        # of the transfer only the first buffers have come
        await until_sampled(client, 100, while_running=sampling)
        assert not syncing.done()
        may_go_on.set()
    await syncing
    rollouts = await sampling

    require_versions(rollouts, allowed=[old, new])
    for rollout in rollouts:
        assert [span.version for span in rollout.versions] == [old, new]
        switch = rollout.versions[1].start
        assert 50 <= switch < MAX_TOKENS
        ids, begin = rollout.prompt_ids + rollout.completion_ids, len(rollout.prompt_ids) - 1
        by_old, by_new = (logprobs(policy, ids)[begin:] for policy in policies)
        assert rollout.rollout_logprobs == pytest.approx([*by_old[:switch], *by_new[switch:]], abs=1e-4)
        # else nobody could tell the weights apart
        assert by_old != pytest.approx(by_new, abs=1e-2)
        assert num_recomputed(rollout) == len(rollout.prompt_ids) + switch
    # which is how vLLM computes their context again
    after = await metric(asynchronous_engine, "vllm:num_preemptions_total", attempt=attempt)
    assert after == preempted + len(rollouts)
    await sync.close()


async def test_a_transfer_that_fails_while_the_engine_samples_does_not_disturb_it(
    asynchronous_engine: Any, client: EngineClient, attempt: int
) -> None:
    first, second = (changed_policy(asynchronous_engine.model_dir, seed=seed) for seed in (72, 73))
    old, new = (PolicyVersion(attempt, step) for step in range(2))
    sync = sync_of(client, transfers_first=True)
    await sync.run(job_of(first, old))
    wanted = await sample_long(client, salt="alone")
    sampling = asyncio.ensure_future(sample_long(client, salt=str(old)))
    await until_sampled(client, 100, while_running=sampling)
    with pytest.raises(SyncFailedError, match=r"^transfer: .*not the bytes announced"):
        await sync.run(job_of(second, new, alter=flip_a_bit))
    assert not sampling.done()
    assert await sampling == wanted
    assert not await client.is_paused(timeout_seconds=10)
    report = await sync.run(job_of(second, new))
    assert report.probe_error < 1e-4
    await sync.close()


async def test_no_call_reads_a_cached_prefix_of_a_call_with_another_salt(
    asynchronous_engine: Any, client: EngineClient, attempt: int
) -> None:
    bundle = Bundle(prompt_ids=tuple(4 + number % 50 for number in range(600)), seed=1, num_samples=1)
    await sync_of(client, transfers_first=True).run(
        job_of(changed_policy(asynchronous_engine.model_dir, seed=74), PolicyVersion(attempt, 0))
    )

    async def hits(salt: str) -> float:
        """Tokens that such a call reads in the cache."""
        name = "vllm:prefix_cache_hits_total"
        before = await metric(asynchronous_engine, name, attempt=attempt)
        call = sampling_call(bundle, sampling=SamplingSpec(max_tokens=4), cache_salt=salt)
        await client.sample(call, max_bytes=MAX_BYTES)
        return await metric(asynchronous_engine, name, attempt=attempt) - before

    assert [await hits("1.0"), await hits("1.0") > 500, await hits("1.1")] == [0, True, 0]
