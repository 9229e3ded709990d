"""A real engine of vLLM whose workers have the receivers of NCCL and CUDA IPC, with stand-ins for the GPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backends import STAND_IN_IPC, STAND_IN_NCCL
from engine_of_several import assert_a_failed_transfer_leaves_the_old_weights

from grpo_api.v1alpha1.spec import WeightSyncBackend

pytestmark = pytest.mark.engine
PROGRAM = (str(Path(__file__).with_name("pod_with_stand_in_gpu.py")),)
STAND_INS = {WeightSyncBackend.NCCL: STAND_IN_NCCL, WeightSyncBackend.IPC: STAND_IN_IPC}


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.matrix)])
def num_workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(
    params=[WeightSyncBackend.NCCL, pytest.param(WeightSyncBackend.IPC, marks=pytest.mark.matrix)]
)
def named(request: pytest.FixtureRequest) -> WeightSyncBackend:
    return request.param


@pytest.fixture
def engine(start: Any, tmp_path: Path, num_workers: int, named: WeightSyncBackend) -> Iterator[Any]:
    with start(
        tmp_path,
        name="engine-of-gpus",
        program=PROGRAM,
        is_forked=num_workers == 1,
        tensor_parallel_size=num_workers,
        weight_sync_backend=named,
    ) as started:
        yield started


async def test_syncs_are_served_and_one_that_is_altered_leaves_every_worker_its_old_weights(
    engine: Any, num_workers: int, named: WeightSyncBackend, attempt: int
) -> None:
    await assert_a_failed_transfer_leaves_the_old_weights(
        engine, attempt=attempt, num_workers=num_workers, backend=STAND_INS[named]
    )
