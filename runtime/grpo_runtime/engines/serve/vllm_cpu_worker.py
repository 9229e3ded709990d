"""vLLM's CPU worker for an engine whose layers are spread over several workers.

A stage receives what the one before has computed into tensors that vLLM makes in its warm-up run. On CPU
there is none, because nothing is compiled, and the first request would end the engine.
"""

from typing import Any

from vllm.distributed import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.worker_base import CompilationTimes


class PipelineStageWorker(CPUWorker):
    """One stage, with the tensors that it receives into."""

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """As vLLM does it, and these tensors."""
        times = super().compile_or_warm_up_model()
        runner: Any = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.dtype, device=runner.device
            )
        return times
