"""`grpo-runtime rollout` whose vLLM runs its own nccl engine on a CPU: only the communicator, and what CUDA
has beside it, are stand-ins. Run as a script."""

import sys
from dataclasses import replace
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from stand_in_vllm_nccl import stand_in_for_cuda

from grpo_runtime.weight_sync import registry

# the engine's process is a fork of this one
stand_in_for_cuda()
registry._BACKENDS[registry.VLLM_NATIVE.name] = replace(registry.VLLM_NATIVE, needs_gpu_in=None)

if __name__ == "__main__":
    from grpo_runtime.engines.serve.main import main

    sys.exit(main())
