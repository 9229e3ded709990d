"""Which engine a rank holds, or has a part of, and which requests are its own."""

import pytest
from fake_local_engine import FakeChannel, FakeLocalEngine, some_weights
from pod_builder import run_config

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.colocated.engine_slice import EngineSlice, num_colocated_engines, parts_of
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


@pytest.mark.parametrize("num_engines", [1, 2, 3, 7, 9])
def test_every_request_is_an_engines_neighbours_are_together_and_engines_have_as_many(
    num_engines: int,
) -> None:
    requests = [GenerateRequest(prompt_ids=(1,), seed=seed) for seed in range(7)]
    parts = parts_of(requests, num_engines=num_engines, engine_of={})
    assert [place for part in parts for place in part] == list(range(7))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_turn_goes_to_the_engine_of_its_session_and_others_where_there_are_fewest() -> None:
    sessions = [3, 0, None, 1, 2, 4]
    requests = [GenerateRequest((1,), seed=0, session=session) for session in sessions]
    assert parts_of(requests, num_engines=2, engine_of={0: 1, 1: 1, 3: 0}) == [[0, 2, 4], [1, 3, 5]]


def test_sessions_that_begin_one_after_the_other_are_shared_too() -> None:
    engine_of: dict[int, int] = {}
    for session in range(6):
        request = GenerateRequest((1,), seed=0, session=session)
        [engine] = [
            engine
            for engine, part in enumerate(parts_of([request], num_engines=3, engine_of=engine_of))
            if part
        ]
        engine_of[session] = engine
    assert sorted(engine_of.values()) == [0, 0, 1, 1, 2, 2]


def test_the_ranks_of_an_engine_sample_the_same_requests_which_are_its_part() -> None:
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
        engine_slice.generate(GenerateCommand(requests, parts=[[4, 0], [1, 2, 3]]))
    sampled = [[request.seed for request in fake.sampled] for fake in fakes]
    assert sampled[0] == sampled[1] and sampled[2] == sampled[3]
    assert (sampled[0], sampled[2]) == ([4, 0], [1, 2, 3])
