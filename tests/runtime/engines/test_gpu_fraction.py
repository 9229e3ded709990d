"""How much of a GPU a colocated engine takes, by what is free on it."""

import pytest
from pod_builder import run_config

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.engines.vllm.arguments import GpuMemory, fraction_of_gpu
from grpo_runtime.errors import UserError

GIB = 2**30


def run_with(**engine: float) -> RunConfig:
    run = run_config(mode="Colocated")
    return run.model_copy(update={"engine": run.engine.model_copy(update=engine)})


@pytest.mark.parametrize(
    ("free", "sleep_level", "share"),
    [
        (60, 1, 0.6),
        (60, 2, 0.6),
        (60, 0, 0.3),
        (10, 1, 0.1),
        (0, 1, 0.001),
        # 0.7996, and 0.2498 of it that never sleeps: what is rounded up may not be free
        (79.96, 1, 0.799),
        (49.96, 0, 0.249),
    ],
)
def test_an_engine_takes_a_part_of_what_is_free_and_less_of_it_when_it_never_sleeps(
    free: float, sleep_level: int, share: float
) -> None:
    run = run_with(sleep_level=sleep_level)
    assert fraction_of_gpu(run, memory=GpuMemory(free=int(free * GIB), total=80 * GIB)) == share


def test_a_share_that_is_named_is_taken_of_the_whole_gpu() -> None:
    run = run_with(gpu_memory_utilization=0.3)
    assert fraction_of_gpu(run, memory=GpuMemory(free=24 * GIB, total=80 * GIB)) == 0.3


def test_what_may_be_named_is_rounded_down_too() -> None:
    run = run_with(gpu_memory_utilization=0.375)
    with pytest.raises(UserError, match=r"below 0.374"):
        fraction_of_gpu(run, memory=GpuMemory(free=int(29.99 * GIB), total=80 * GIB))


def test_a_share_that_is_not_free_is_refused_with_the_numbers() -> None:
    run = run_with(gpu_memory_utilization=0.6)
    with pytest.raises(UserError, match=r"\(0.6\) asks for 48.0 GiB .* leave 30.0 GiB free: .* below 0.375"):
        fraction_of_gpu(run, memory=GpuMemory(free=30 * GIB, total=80 * GIB))
