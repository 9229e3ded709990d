"""vLLM's CPU worker for ranks that share an engine, with a name of its own for the memory they share.

vLLM names that memory after the address at which ranks meet, which is always the same under an external
launcher: two jobs on one machine would use the same memory, and so would a job and what a killed one left
behind.
"""

import os
from pathlib import Path

from vllm.v1.worker.cpu_worker import CPUWorker

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - not a file of ours: where Linux shows shared memory


class SharedEngineWorker(CPUWorker):
    """One rank's worker. The ranks of an engine are children of one process and have met at one port."""

    def init_device(self) -> None:
        """As vLLM does it; the address is used for nothing else, because the ranks have met already."""
        name = f"grpo-{os.getppid()}-{os.environ['MASTER_PORT']}"
        self.distributed_init_method = f"env://:{name}"
        super().init_device()  # type: ignore[no-untyped-call] # vLLM leaves it without types
        # every rank is attached by now; without a name the memory goes with the ranks, also when they are
        # killed
        for path in _SHARED_MEMORY.glob(f"{name}-*"):
            path.unlink(missing_ok=True)
