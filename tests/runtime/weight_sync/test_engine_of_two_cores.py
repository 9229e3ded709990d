"""A real engine of a mixture-of-experts model: two cores with requests of their own, each with half of the
experts."""

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from engine_of_several import REQUESTS, assert_it_samples_as_one_worker_does, fleet_of
from one_engine_sync import OneEngineSync
from policy_builder import changed_policy, probe_of, weights_of
from polling import wait_until
from prometheus_client.parser import text_string_to_metric_families
from receiver_harness import AlteredCopy, flip_a_bit
from test_engine_of_two_workers import processes_of
from tiny_moe import write_tiny_moe
from transformers import PreTrainedModel

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.engines import routes
from grpo_runtime.engines.fleet.engine_calls import (
    AnswerLimits,
    Bundle,
    answered_probe_error,
    probe_call,
    read_rollouts,
    sampling_call,
)
from grpo_runtime.engines.fleet.engine_client import MAX_BYTES, Address, EngineClient, open_session
from grpo_runtime.engines.fleet.engine_sync import SyncFailedError, SyncJob
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.registry import GLOO
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

pytestmark = [pytest.mark.engine, pytest.mark.matrix]
CORES = (0, 1)


@pytest.fixture(scope="module")
def start_moe(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Starts an engine of the tiny mixture-of-experts model."""

    def start_moe(name: str, **run: Any) -> AbstractContextManager[Any]:
        folder = tmp_path_factory.mktemp("moe")
        model = folder / "cache" / "model"
        write_tiny_moe(model)
        made: AbstractContextManager[Any] = start(
            folder, name=name, is_forked=False, model_source=f"file://{model}", **run
        )
        return made

    return start_moe


@pytest.fixture(scope="module")
def two_cores(start_moe: Any) -> Iterator[Any]:
    """The last test here kills one of them."""
    with start_moe("engine-of-two-cores", data_parallel_size=2, expert_parallel=True) as started:
        yield started


async def test_each_sync_reaches_both_cores_and_they_sample_what_an_engine_of_one_does(
    two_cores: Any, start_moe: Any, attempt: int
) -> None:
    with start_moe("engine-of-one-core") as one:
        before = await num_tokens_of_cores(two_cores, attempt=attempt)
        await assert_it_samples_as_one_worker_does(
            two_cores, one=one, attempt=attempt, num_workers=2, num_cores=2
        )
    after = await num_tokens_of_cores(two_cores, attempt=attempt)
    # more than the tokens of the probes
    assert all(after[core] - before.get(core, 0) > 20 for core in ("0", "1"))


async def test_a_failed_transfer_leaves_both_cores_their_old_weights_and_the_next_one_works(
    two_cores: Any, attempt: int
) -> None:
    async with open_session() as session:
        client = client_of(two_cores, session, attempt=attempt)
        sync = OneEngineSync(
            client, backend=GLOO, timeout_seconds=20.0, workers_per_engine=2, cores_per_engine=2
        )
        first, second = (changed_policy(two_cores.model_dir, seed=seed) for seed in (30, 31))

        def job(step: int, policy: PreTrainedModel, weights: HostCopy) -> SyncJob:
            return SyncJob(version=PolicyVersion(attempt, step), weights=weights, probe=probe_of(policy))

        async def probe_errors(policy: PreTrainedModel) -> list[float]:
            probe = probe_of(policy)
            answers = [
                await client.logprobs(probe_call(probe, core=core), timeout_seconds=10) for core in CORES
            ]
            return [answered_probe_error(answer, probe=probe, engine="two-cores") for answer in answers]

        await sync.run(job(1, first, HostCopy(weights_of(first))))
        # the second one pauses an engine that is paused
        for _ in range(2):
            broken = AlteredCopy(weights_of(second), alter=flip_a_bit, buffer_bytes=4096)
            with pytest.raises(SyncFailedError, match="not the bytes announced"):
                await sync.run(job(2, second, broken))
        await client.resume(timeout_seconds=10)
        assert max(await probe_errors(first)) < 1e-4
        assert min(await probe_errors(second)) > 1e-2

        report = await sync.run(job(3, second, HostCopy(weights_of(second))))
        assert report.probe_error < 1e-4
        assert max(await probe_errors(second)) < 1e-4
        await sync.close()


async def test_both_cores_give_the_same_completion_to_the_last_bit(two_cores: Any, attempt: int) -> None:
    bundle = Bundle(prompt_ids=(10, 20, 30), seed=7, num_samples=8)
    call = sampling_call(bundle, sampling=SamplingSpec(max_tokens=16))
    policy = changed_policy(two_cores.model_dir, seed=60)
    async with open_session() as session:
        client = client_of(two_cores, session, attempt=attempt)
        sync = OneEngineSync(
            client, backend=GLOO, timeout_seconds=20.0, workers_per_engine=2, cores_per_engine=2
        )
        weights = HostCopy(weights_of(policy))
        await sync.run(SyncJob(version=PolicyVersion(attempt, 0), weights=weights, probe=probe_of(policy)))
        answers = [await client.sample(replace(call, core=core), max_bytes=MAX_BYTES) for core in CORES]
        of_first, of_second = (
            read_rollouts(one, bundle=bundle, engine="two-cores", limits=AnswerLimits(4096))
            for one in answers
        )
        assert of_first == of_second
        await sync.close()


async def test_requests_in_both_cores_go_on_with_new_weights_after_a_sync(
    two_cores: Any, attempt: int
) -> None:
    bundle = Bundle(prompt_ids=(10, 20, 30), seed=7, num_samples=1)
    call = sampling_call(bundle, sampling=SamplingSpec(max_tokens=200))
    call = replace(call, parameters={**call.parameters, "ignore_eos": True})
    async with open_session() as session:
        client = client_of(two_cores, session, attempt=attempt)
        sync = OneEngineSync(
            client, backend=GLOO, timeout_seconds=20.0, workers_per_engine=2, cores_per_engine=2
        )

        def job(step: int) -> SyncJob:
            policy = changed_policy(two_cores.model_dir, seed=40 + step)
            weights = HostCopy(weights_of(policy))
            return SyncJob(version=PolicyVersion(attempt, step), weights=weights, probe=probe_of(policy))

        jobs = [job(step) for step in range(2)]
        await sync.run(jobs[0])
        before = await num_tokens_of_cores(two_cores, attempt=attempt)
        answers = [
            asyncio.ensure_future(client.sample(replace(call, core=core), max_bytes=MAX_BYTES))
            for core in CORES
        ]
        while any(
            tokens < before[core] + 10
            for core, tokens in (await num_tokens_of_cores(two_cores, attempt=attempt)).items()
        ):
            assert not any(answer.done() for answer in answers)
        report = await sync.run(jobs[1])
        assert report.probe_error < 1e-4
        for answer in answers:
            [rollout] = read_rollouts(
                await answer, bundle=bundle, engine="two-cores", limits=AnswerLimits(4096)
            )
            assert [span.version for span in rollout.versions] == [job.version for job in jobs]
            assert len(rollout.completion_ids) == 200
        await sync.close()


async def test_an_engine_with_one_hung_core_is_found_and_synced_before_it_serves_again(
    two_cores: Any, attempt: int
) -> None:
    fleet = await fleet_of(
        two_cores,
        attempt=attempt,
        workers_per_engine=2,
        cores_per_engine=2,
        hung_after_seconds=3.0,
        probe_timeout_seconds=1.0,
        sampling=SamplingSpec(max_tokens=200),
    )
    policy = changed_policy(two_cores.model_dir, seed=50)
    await fleet.sync(weights_of(policy), version=PolicyVersion(attempt, 0), probe=probe_of(policy))
    wanted = [rollout.completion_ids for rollout in await fleet.generate(REQUESTS)]
    before = await num_tokens_of_cores(two_cores, attempt=attempt)
    step = asyncio.ensure_future(fleet.generate(REQUESTS))
    while await num_tokens_of_cores(two_cores, attempt=attempt) == before:
        assert not step.done()
    hung = max(two_cores.core_pids())
    os.kill(hung, signal.SIGSTOP)
    try:
        # 5 s, and what a busy machine adds. The fleet has a thread of its own
        wait_until(lambda: fleet.counts().current == 0, "the engine is given no work", seconds=15)
        assert not step.done()
    finally:
        os.kill(hung, signal.SIGCONT)
    assert [rollout.completion_ids for rollout in await step] == wanted
    assert fleet.num_stale_answers == 0
    await fleet.close()


def test_an_engine_that_has_lost_a_core_says_so_and_ends(two_cores: Any) -> None:
    """The last test with this engine."""
    os.kill(max(two_cores.core_pids()), signal.SIGKILL)
    wait_until(lambda: not two_cores.is_live(), "the engine says that it is dead", seconds=15)
    assert_it_ends(two_cores)


def test_an_engine_ends_with_the_process_that_coordinates_its_cores(start_moe: Any) -> None:
    with start_moe("engine-without-coordinator", data_parallel_size=2, expert_parallel=True) as engine:
        os.kill(min(engine.core_pids()), signal.SIGKILL)
        assert_it_ends(engine)


def assert_it_ends(engine: Any) -> None:
    assert engine.process.wait(20) == ExitCode.UNEXPECTED
    message = TerminationMessage.model_validate_json(engine.termination_log.read_text())
    assert message.message == "the vLLM engine died; see this container's log"
    wait_until(lambda: processes_of(engine) == {}, "no process outlives it")


def client_of(engine: Any, session: aiohttp.ClientSession, *, attempt: int) -> EngineClient:
    tokens = Tokens(data=engine.data_token, admin=engine.admin_token)
    return EngineClient(session, Address("127.0.0.1", engine.port), tokens=tokens, attempt=attempt)


async def num_tokens_of_cores(engine: Any, *, attempt: int) -> Mapping[str, float]:
    """What each core of the engine has generated."""
    return await metric_of_cores(engine, "vllm:generation_tokens_total", attempt=attempt)


async def metric_of_cores(engine: Any, name: str, *, attempt: int) -> Mapping[str, float]:
    """The value of a metric for each core of the engine."""
    headers = {"Authorization": f"Bearer {engine.admin_token}", routes.ATTEMPT_HEADER: str(attempt)}
    async with (
        open_session() as session,
        session.get(engine.url(routes.METRICS_PATH), headers=headers) as response,
    ):
        families = text_string_to_metric_families(await response.text())
        return {
            sample.labels["engine"]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == name
        }
