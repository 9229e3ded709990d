"""What every engine of several workers must show: a sync reaches all of them, it samples as one of one worker
does, and a transfer that fails changes none of them.

Such an engine is cut into tensors or stages, in one pod or in two, and gets its weights over gloo or from
shared memory. Of these `make test` runs stages in two pods over gloo here, tensors in one pod from shared
memory in tests/runtime/local, and tensors in two pods over gloo in e2e; `make test-matrix` runs the
others.
"""

from typing import Any

import pytest
from one_engine_sync import OneEngineSync
from policy_builder import changed_policy, logprobs, probe_of, weights_of
from receiver_harness import AlteredCopy, flip_a_bit
from transformers import PreTrainedModel

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.engines.fleet.engine_calls import answered_probe_error, probe_call
from grpo_runtime.engines.fleet.engine_client import Address, EngineClient, open_session
from grpo_runtime.engines.fleet.engine_sync import SyncFailedError, SyncJob
from grpo_runtime.engines.fleet.fleet import Fleet
from grpo_runtime.engines.fleet.settings import FleetSettings
from grpo_runtime.rollouts.interface import GenerateRequest
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.interface import Backend
from grpo_runtime.weight_sync.registry import GLOO
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

REQUESTS = [
    GenerateRequest(prompt_ids=tuple(range(4 + index, 9 + 2 * index)), seed=2**40 + index)
    for index in range(16)
]


async def fleet_of(
    engine: Any, *, attempt: int, workers_per_engine: int, cores_per_engine: int = 1, **changes: Any
) -> Fleet:
    """A fleet of one engine; `changes` are of its settings."""
    settings: dict[str, Any] = {
        "hosts": (Address("127.0.0.1", engine.port),),
        "desired": 1,
        "attempt": attempt,
        "tokens": Tokens(data=engine.data_token, admin=engine.admin_token),
        "sampling": SamplingSpec(max_tokens=12),
        "sync_timeout_seconds": 20.0,
        "start_wait_seconds": 30.0,
        "empty_wait_seconds": 30.0,
        "heartbeat_seconds": 0.2,
        "workers_per_engine": workers_per_engine,
        "cores_per_engine": cores_per_engine,
    }
    return Fleet(FleetSettings(**settings | changes), backend=GLOO)


async def assert_it_samples_as_one_worker_does(
    several: Any, *, one: Any, attempt: int, num_workers: int, num_cores: int = 1
) -> None:
    """Sync two policies into both engines, and compare what they sample with each other and its logprobs with
    those of the policy."""
    fleet = await fleet_of(
        several, attempt=attempt, workers_per_engine=num_workers, cores_per_engine=num_cores
    )
    of_one = await fleet_of(one, attempt=attempt, workers_per_engine=1)
    sampled = []
    for step in range(2):
        policy = changed_policy(several.model_dir, seed=20 + step)
        version = PolicyVersion(attempt, step)
        report = await fleet.sync(weights_of(policy), version=version, probe=probe_of(policy))
        assert report.synced == (several.name,)
        assert report.max_probe_error < 1e-4
        await of_one.sync(weights_of(policy), version=version, probe=probe_of(policy))

        rollouts = await fleet.generate(REQUESTS)
        for rollout in rollouts:
            ids = rollout.prompt_ids + rollout.completion_ids
            wanted = logprobs(policy, ids)[len(rollout.prompt_ids) - 1 :]
            assert rollout.rollout_logprobs == pytest.approx(wanted, abs=1e-4)
            assert {span.version for span in rollout.versions} == {version}
        sampled.append([rollout.completion_ids for rollout in rollouts])
        assert sampled[-1] == [rollout.completion_ids for rollout in await of_one.generate(REQUESTS)]
    assert sampled[0] != sampled[1]
    await fleet.close()
    await of_one.close()


async def assert_a_failed_transfer_leaves_the_old_weights(
    several: Any, *, attempt: int, num_workers: int, backend: Backend[Any] = GLOO
) -> None:
    """Alter one bit of a sync on its way; the probe finds the weights of the one before, and the next one
    works."""
    async with open_session() as session:
        tokens = Tokens(data=several.data_token, admin=several.admin_token)
        client = EngineClient(session, Address("127.0.0.1", several.port), tokens=tokens, attempt=attempt)
        sync = OneEngineSync(client, backend=backend, timeout_seconds=20.0, workers_per_engine=num_workers)
        first, second = (changed_policy(several.model_dir, seed=seed) for seed in (30, 31))

        def job(step: int, policy: PreTrainedModel, weights: HostCopy) -> SyncJob:
            return SyncJob(version=PolicyVersion(attempt, step), weights=weights, probe=probe_of(policy))

        async def probe_error(policy: PreTrainedModel) -> float:
            probe = probe_of(policy)
            answer = await client.logprobs(probe_call(probe, core=None), timeout_seconds=10)
            return answered_probe_error(answer, probe=probe, engine=several.name)

        await sync.run(job(1, first, backend.prepare(weights_of(first))))
        broken = AlteredCopy(weights_of(second), alter=flip_a_bit, buffer_bytes=4096)
        with pytest.raises(SyncFailedError, match="not the bytes announced"):
            await sync.run(job(2, second, broken))
        await client.resume(timeout_seconds=10)
        assert await probe_error(first) < 1e-4

        for step in (3, 4):
            report = await sync.run(job(step, second, backend.prepare(weights_of(second))))
            assert report.probe_error < 1e-4
        await sync.close()
