"""Which engine a rank holds, or has a part of, and which requests are its own."""

import pytest
from fake_local_engine import FakeChannel, FakeLocalEngine, some_weights
from pod_builder import run_config

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.colocated.engine_slice import EngineSlice, num_colocated_engines
from grpo_runtime.engines.colocated.rank_engine import RankEngine
from grpo_runtime.engines.colocated.rank_messages import GenerateCommand, SyncCommand
from grpo_runtime.rollouts.interface import GenerateRequest
from grpo_runtime.weight_sync.registry import IN_PROCESS


@pytest.mark.parametrize(("tensor_parallel", "num_engines"), [(1, 4), (2, 2), (4, 1)])
def test_ranks_hold_an_engine_for_every_tensor_parallel_group(tensor_parallel: int, num_engines: int) -> None:
    run = run_config(
        mode="Colocated",
        trainer={"processesPerNode": 4},
        engine={"tensorParallelSize": tensor_parallel},
    )
    assert num_colocated_engines(run) == num_engines


def test_the_ranks_of_an_engine_sample_the_same_requests_and_engines_share_all_of_them() -> None:
    requests = [GenerateRequest(prompt_ids=(1,), seed=seed) for seed in range(5)]
    fakes = [FakeLocalEngine() for _ in range(4)]
    slices = [
        EngineSlice(
            RankEngine(fake, backend=IN_PROCESS, sleep_level=1, timeout_seconds=60.0),
            channel,
            ranks_per_engine=2,
        )
        for fake, channel in zip(fakes, FakeChannel.of(len(fakes)), strict=True)
    ]
    assert [engine_slice.is_first for engine_slice in slices] == [True, False, True, False]
    for engine_slice in slices:
        engine_slice.sync(SyncCommand(PolicyVersion(attempt=1, step=0), probe=None), weights=some_weights())
        engine_slice.generate(GenerateCommand(requests))
    sampled = [[request.seed for request in fake.sampled] for fake in fakes]
    assert sampled[0] == sampled[1] and sampled[2] == sampled[3]
    assert sampled[0] + sampled[2] == [0, 1, 2, 3, 4]
