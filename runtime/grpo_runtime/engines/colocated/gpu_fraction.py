"""How much of its GPU a colocated engine takes.

vLLM takes a fraction of the whole GPU, and does not start where less is free. What an engine takes it needs
whenever it is awake, and then policy, gradient buckets and optimizer are there too. So it starts after them,
and its fraction follows from what they leave free.
"""

import math
from dataclasses import dataclass

import torch

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.errors import UserError

FRACTION_ASLEEP = 0.8
"""Of what is free. The rest is for CUDA graphs, for collective operations and for weights on their way."""
FRACTION_AWAKE = 0.4
"""Of what is free, for an engine that never sleeps: the trainer needs as much for activations."""
_GIB = 2**30


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of one GPU, free for everybody and in all."""

    free: int
    total: int


def read_gpu_memory() -> GpuMemory:
    """That of the GPU of the calling thread."""
    free, total = torch.cuda.mem_get_info()
    return GpuMemory(free=free, total=total)


def fraction_of_gpu(run_config: RunConfig, *, memory: GpuMemory) -> float:
    """The fraction of the whole GPU that an engine takes which starts now, rounded down to thousandths.

    Raises UserError when `engine.gpuMemoryUtilization` asks for more than is free.
    """
    named = run_config.engine.gpu_memory_utilization
    most = _rounded_down(memory.free / memory.total)
    if named is None:
        fraction = FRACTION_ASLEEP if run_config.engine.sleep_level > 0 else FRACTION_AWAKE
        return _rounded_down(fraction * memory.free / memory.total)
    if named > most:
        total, free = memory.total / _GIB, memory.free / _GIB
        raise UserError(
            f"engine.gpuMemoryUtilization ({named:g}) asks for {named * total:.1f} GiB of a GPU of "
            f"{total:.1f} GiB, of which policy and optimizer leave {free:.1f} GiB free: lower it below "
            f"{most:g}, or remove it"
        )
    return named


def _rounded_down(fraction: float) -> float:
    return max(1, math.floor(fraction * 1000)) / 1000
