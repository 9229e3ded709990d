"""`grpo-runtime rollout` whose vLLM runs its own nccl engine on a CPU: only the communicator, and what CUDA
has beside it, are stand-ins. Run as a script."""

import sys
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

import torch
from stand_in_vllm_nccl import StandInPyNccl
from vllm.distributed.weight_transfer import nccl_common, packed_tensor

from grpo_runtime.weight_sync import registry


class StandInStream:
    """All that is given to it is done at once."""

    def synchronize(self) -> None:
        return


def stand_in_streams(device_idx: int, num_buffers: int) -> tuple[StandInStream, ...]:
    return tuple(StandInStream() for _ in range(num_buffers))


# the engine's process is a fork of this one
nccl_common.uid_init_process_group = StandInPyNccl
packed_tensor._get_streams = stand_in_streams
torch.accelerator.current_device_index = lambda: 0
torch.accelerator.synchronize = lambda *_: None
registry._BACKENDS[registry.VLLM_NCCL.name] = replace(registry.VLLM_NCCL, needs_gpu=False)

if __name__ == "__main__":
    from grpo_runtime.engines.serve.main import main

    sys.exit(main())
