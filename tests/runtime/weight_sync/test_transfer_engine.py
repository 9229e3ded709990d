"""Whether an engine's worker has room to stage weights beside the model."""

from types import SimpleNamespace
from typing import Any

import pytest

from grpo_runtime.weight_sync.receiver import free_memory
from grpo_runtime.weight_sync.worker.transfer_engine import KEPT_FREE_BYTES, StagedWeightTransferEngine


def has_room(num_bytes: int, *, num_workers: int, num_cores: int = 1) -> bool:
    """What a worker says of whose kind there are so many in each core of its container."""
    sizes = {"local_world_size": num_workers, "data_parallel_size_local": num_cores}
    worker: Any = SimpleNamespace(parallel_config=SimpleNamespace(**sizes))
    return StagedWeightTransferEngine.has_room(worker, num_bytes)


@pytest.mark.parametrize(("num_workers", "has_it"), [(1, True), (2, False), (4, False)])
def test_there_is_room_only_if_every_worker_of_the_container_can_stage(
    num_workers: int, has_it: bool
) -> None:
    num_bytes = int((free_memory() - KEPT_FREE_BYTES) * 0.7)
    assert num_bytes > 0
    assert has_room(num_bytes, num_workers=num_workers) is has_it
    assert has_room(num_bytes, num_workers=1, num_cores=num_workers) is has_it
    assert has_room(0, num_workers=num_workers)
