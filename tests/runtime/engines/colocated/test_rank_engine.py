"""The order in which an engine that shares its device sleeps, wakes and is given weights."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest
import torch
from fake_local_engine import FakeLocalEngine, some_weights

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.colocated.rank_engine import RankEngine
from grpo_runtime.rollouts.interface import GenerateRequest, OnFinished, Probe, Rollout
from grpo_runtime.torch_threads import pin_num_threads
from grpo_runtime.weight_sync.in_process import SharedWeights
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.registry import IN_PROCESS

REQUESTS = [GenerateRequest(prompt_ids=(1, 2), seed=7)]
LOAD = ["start", "update", "finish"]


def make(fake: FakeLocalEngine, *, sleep_level: int) -> RankEngine:
    return RankEngine(fake, backend=IN_PROCESS, sleep_level=sleep_level, timeout_seconds=60.0)


def run_step(engine: RankEngine, step: int) -> None:
    engine.sync(some_weights(), version=PolicyVersion(1, step), probe=None)
    engine.generate(REQUESTS)


def test_what_the_trainer_has_cached_is_given_back_before_each_time_the_engine_takes_memory() -> None:
    fake = FakeLocalEngine()
    engine = RankEngine(
        fake,
        backend=IN_PROCESS,
        sleep_level=2,
        timeout_seconds=60.0,
        release_memory=lambda: fake.calls.append("release"),
    )
    run_step(engine, 0)
    assert "release" not in fake.calls  # it is awake, and has its memory
    fake.calls.clear()
    run_step(engine, 1)
    assert fake.calls[:7] == ["release", "wake weights", *LOAD, "release", "wake kv_cache"]


def test_an_engine_of_several_turns_sleeps_after_the_last_one() -> None:
    fake = FakeLocalEngine()
    engine = make(fake, sleep_level=1)
    engine.sync(some_weights(), version=PolicyVersion(1, 0), probe=None)
    for _ in range(2):
        engine.generate(REQUESTS, stays_awake=True)
        assert engine.num_finished == len(REQUESTS)
    engine.rest()
    assert fake.calls == [*LOAD, "reset prefix cache", "sample", "sample", "sleep 1"]


@pytest.mark.parametrize("level", [1, 2])
def test_weights_come_before_the_cache_and_the_engine_sleeps_while_the_trainer_computes(level: int) -> None:
    fake = FakeLocalEngine()
    engine = make(fake, sleep_level=level)
    run_step(engine, 0)
    assert fake.calls == [*LOAD, "reset prefix cache", "sample", f"sleep {level}"]

    fake.calls.clear()
    run_step(engine, 1)
    assert fake.calls == [
        *("wake weights", *LOAD, "wake kv_cache", "reset prefix cache", "sample", f"sleep {level}")
    ]


def test_at_level_2_every_sampling_and_every_probe_follows_a_sync_of_all_weights() -> None:
    fake = FakeLocalEngine(logprobs=(-1.0, -2.0))
    engine = make(fake, sleep_level=2)
    probe = Probe(token_ids=(1, 2, 3), logprobs=(-1.0, -2.0), tolerance=1e-4)
    for step in range(3):
        engine.sync(some_weights(), version=PolicyVersion(1, step), probe=probe)
        engine.generate(REQUESTS)
    assert fake.calls.count("sample") == fake.calls.count("probe") == fake.calls.count("finish") == 3
    for tag in ("weights", "kv_cache"):
        fake.wake_up(tag)
    with pytest.raises(RuntimeError, match="thrown away"):
        engine.generate(REQUESTS)


def test_at_level_0_the_engine_is_never_asleep() -> None:
    fake = FakeLocalEngine()
    engine = make(fake, sleep_level=0)
    for step in range(2):
        run_step(engine, step)
    assert fake.calls == [*LOAD, "reset prefix cache", "sample"] * 2


def test_an_engine_without_work_sleeps_as_well() -> None:
    fake = FakeLocalEngine()
    engine = make(fake, sleep_level=1)
    engine.sync(some_weights(), version=PolicyVersion(1, 0), probe=None)
    assert engine.generate([]) == []
    assert fake.calls[-1] == "sleep 1"
    assert "sample" not in fake.calls


@pytest.mark.parametrize(
    ("logprobs", "error"),
    [((-1.0, -2.0), 0.0), ((-1.5, -2.0), 0.25), ((-1.0, math.nan), math.inf), ((-1.0, -math.inf), math.inf)],
)
def test_the_probe_is_computed_once_the_cache_is_there(logprobs: tuple[float, float], error: float) -> None:
    fake = FakeLocalEngine(logprobs=logprobs)
    engine = make(fake, sleep_level=1)
    run_step(engine, 0)
    fake.calls.clear()
    probe = Probe(token_ids=(1, 2, 3), logprobs=(-1.0, -2.0), tolerance=1e-4)
    report = engine.sync(some_weights(), version=PolicyVersion(1, 1), probe=probe)
    assert report.probe_error == error
    assert report.num_bytes == 16
    assert fake.calls[-3:] == ["wake kv_cache", "reset prefix cache", "probe"]


@pytest.mark.parametrize("is_refused", [False, True])
def test_no_sync_ends_while_a_copy_of_the_policy_is_still_being_made(is_refused: bool) -> None:
    waited: list[str] = []

    @dataclass(frozen=True)
    class SlowlyCopied(SharedWeights):
        def wait_until_read(self) -> float:
            waited.append("until it is read")
            return 0.0

    class Refusing(FakeLocalEngine):
        def require_awake(self, *tags: str) -> None:
            if is_refused:
                raise WeightSyncError("no room")

    engine = RankEngine(
        Refusing(),
        backend=replace(IN_PROCESS, prepare=SlowlyCopied),
        sleep_level=0,
        timeout_seconds=60.0,
    )
    try:
        engine.sync(some_weights(), version=PolicyVersion(1, 0), probe=None)
    except WeightSyncError:
        assert is_refused
    assert waited == ["until it is read"]


class CountingEngine(FakeLocalEngine):
    """Notes how many threads torch would compute with while it samples and scores."""

    def __init__(self) -> None:
        super().__init__(logprobs=(-1.0, -2.0))
        self.num_threads: list[int] = []

    def sample(
        self, requests: Sequence[GenerateRequest], *, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        self.num_threads.append(torch.get_num_threads())
        return super().sample(requests, on_finished=on_finished)

    def probe_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        self.num_threads.append(torch.get_num_threads())
        return super().probe_logprobs(token_ids)


@pytest.mark.parametrize("error", [None, RuntimeError("lost")])
def test_an_engine_computes_with_one_thread_and_gives_the_others_back(error: Exception | None) -> None:
    before = torch.get_num_threads()
    pin_num_threads(2)
    try:
        fake = CountingEngine()
        fake._error = error
        engine = make(fake, sleep_level=1)
        probe = Probe(token_ids=(1, 2, 3), logprobs=(-1.0, -2.0), tolerance=1e-4)
        engine.sync(some_weights(), version=PolicyVersion(1, 0), probe=probe)
        with pytest.raises(RuntimeError) if error else nullcontext():
            engine.generate(REQUESTS)
        assert fake.num_threads == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        pin_num_threads(before)
