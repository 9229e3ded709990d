"""A real engine whose model is cut into two parts, each in a process of its own, in a fleet."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from policy_builder import changed_policy, logprobs, probe_of, weights_of
from polling import wait_until

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.fleet.engine_client import Address
from grpo_runtime.fleet.fleet import Fleet
from grpo_runtime.fleet.settings import FleetSettings
from grpo_runtime.rollout.interface import GenerateRequest
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.registry import GLOO

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine_of_two(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The last test here kills a part of it."""
    folder = tmp_path_factory.mktemp("two")
    with start(folder, name="engine-of-two", tensor_parallel_size=2) as started:
        yield started


async def fleet_of(engine: Any, *, attempt: int, workers_per_engine: int) -> Fleet:
    settings = FleetSettings(
        hosts=(Address("127.0.0.1", engine.port),),
        desired=1,
        attempt=attempt,
        tokens=Tokens(data=engine.data_token, admin=engine.admin_token),
        temperature=1.0,
        max_tokens=12,
        sync_timeout_seconds=20.0,
        start_wait_seconds=30.0,
        empty_wait_seconds=30.0,
        heartbeat_seconds=0.2,
        workers_per_engine=workers_per_engine,
    )
    return Fleet(settings, backend=GLOO)


REQUESTS = [
    GenerateRequest(prompt_ids=tuple(range(4 + index, 9 + 2 * index)), seed=2**40 + index)
    for index in range(16)
]


async def test_each_sync_reaches_both_workers_and_the_engine_samples_what_one_of_one_worker_does(
    engine_of_two: Any, engine: Any, attempt: int
) -> None:
    two = await fleet_of(engine_of_two, attempt=attempt, workers_per_engine=2)
    one = await fleet_of(engine, attempt=attempt, workers_per_engine=1)
    sampled = []
    for step in range(2):
        policy = changed_policy(engine_of_two.model_dir, seed=20 + step)
        version = PolicyVersion(attempt, step)
        report = await two.sync(weights_of(policy), version=version, probe=probe_of(policy))
        assert report.synced == ("engine-of-two",)
        assert report.max_probe_error < 1e-4
        await one.sync(weights_of(policy), version=version, probe=probe_of(policy))

        rollouts = await two.generate(REQUESTS)
        for rollout in rollouts:
            ids = rollout.prompt_ids + rollout.completion_ids
            wanted = logprobs(policy, ids)[len(rollout.prompt_ids) - 1 :]
            assert rollout.rollout_logprobs == pytest.approx(wanted, abs=1e-4)
            assert {span.version for span in rollout.versions} == {version}
        sampled.append([rollout.completion_ids for rollout in rollouts])
        assert sampled[-1] == [rollout.completion_ids for rollout in await one.generate(REQUESTS)]
    assert sampled[0] != sampled[1]
    await two.close()
    await one.close()
