"""`grpo-runtime rollout` whose workers take weights as on GPUs, over NCCL or CUDA IPC: the GPU, NCCL and the
handles are stand-ins, in a vLLM that computes on a CPU. Run as a script."""

import sys
from dataclasses import replace
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from backends import STAND_IN_IPC, STAND_IN_NCCL

from grpo_runtime.weight_sync import registry

# the engine's process is a fork of this one
for product, stand_in in ((registry.NCCL, STAND_IN_NCCL), (registry.IPC, STAND_IN_IPC)):
    registry._BACKENDS[product.name] = replace(stand_in, name=product.name, needs_gpu=False)

if __name__ == "__main__":
    from grpo_runtime.engines.serve.main import main

    sys.exit(main())
