"""What every engine of several workers must show: a sync reaches all of them, and it samples as one of one
worker does."""

from typing import Any

import pytest
from policy_builder import changed_policy, logprobs, probe_of, weights_of

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.fleet.engine_client import Address
from grpo_runtime.fleet.fleet import Fleet
from grpo_runtime.fleet.settings import FleetSettings
from grpo_runtime.rollout.interface import GenerateRequest
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.registry import GLOO

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
        "temperature": 1.0,
        "max_tokens": 12,
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
