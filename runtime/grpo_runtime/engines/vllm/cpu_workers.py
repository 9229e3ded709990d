"""vLLM's CPU worker with what its CPU build lacks, for engines of several workers: ranks that share an
engine, and stages with some of the layers each. Workers with some of the experts each are in `cpu_experts`.

vLLM loads them by name (`--worker-cls`): imports nothing else of ours.
"""

import os
from pathlib import Path
from typing import Any

from vllm.distributed import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.worker_base import CompilationTimes

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - not a file of ours: where Linux shows shared memory


class SharedEngineWorker(CPUWorker):
    """One rank's worker, with a name of its own for the memory that the ranks of an engine share.

    vLLM names that memory after the address at which ranks meet, which is always the same under an external
    launcher: two jobs on one machine would use the same memory, and so would a job and what a killed one left
    behind. The ranks of an engine are children of one process and have met at one port.
    """

    def init_device(self) -> None:
        """Does what vLLM does; the address is used for nothing else, because the ranks have met already."""
        name = f"grpo-{os.getppid()}-{os.environ['MASTER_PORT']}"
        self.distributed_init_method = f"env://:{name}"
        super().init_device()  # type: ignore[no-untyped-call] # vLLM leaves it without types
        # every rank is attached by now; without a name the memory goes with the ranks, also when they are
        # killed
        for path in _SHARED_MEMORY.glob(f"{name}-*"):
            path.unlink(missing_ok=True)


class PipelineStageWorker(CPUWorker):
    """One stage of an engine whose layers are spread over workers, with the tensors that it receives into.

    vLLM makes these, for what the stage before has computed, in its warm-up run. On CPU there is none,
    because nothing is compiled, and the first request would end the engine.
    """

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Does what vLLM does, for these tensors too."""
        times = super().compile_or_warm_up_model()
        runner: Any = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.dtype, device=runner.device
            )
        return times
