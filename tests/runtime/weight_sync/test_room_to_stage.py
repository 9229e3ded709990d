"""Whether an engine's worker has room to stage weights beside the model."""

from types import SimpleNamespace
from typing import Any

import pytest

from grpo_runtime.weight_sync.free_memory import free_memory
from grpo_runtime.weight_sync.vllm_transfer_engine import KEPT_FREE_BYTES, StagedWeightTransferEngine


def has_room(num_bytes: int, *, num_workers: int) -> bool:
    """What a worker says of which there are so many in its container."""
    worker: Any = SimpleNamespace(parallel_config=SimpleNamespace(local_world_size=num_workers))
    return StagedWeightTransferEngine.has_room(worker, num_bytes)


@pytest.mark.parametrize(("num_workers", "has_it"), [(1, True), (2, False), (4, False)])
def test_there_is_room_only_if_every_worker_of_the_container_can_stage(
    num_workers: int, has_it: bool
) -> None:
    num_bytes = int((free_memory() - KEPT_FREE_BYTES) * 0.7)
    assert num_bytes > 0
    assert has_room(num_bytes, num_workers=num_workers) is has_it
    assert has_room(0, num_workers=num_workers)
