"""vLLM's CPU worker for ranks that share an engine, with a name of its own for the memory they share.

vLLM names that memory after the address where ranks meet, which says nothing under an external launcher: two
jobs of one machine would want the same name, and so would a job and what a killed one left behind.
"""

import os
from pathlib import Path

from vllm.v1.worker.cpu_worker import CPUWorker

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - not a file of ours: where Linux shows shared memory


class SharedEngineWorker(CPUWorker):
    """One rank's worker. The ranks of an engine are children of one process and met at one port."""

    def init_device(self) -> None:
        """See vLLM; the address is used for nothing else, for the ranks have met already."""
        name = f"grpo-{os.getppid()}-{os.environ['MASTER_PORT']}"
        self.distributed_init_method = f"env://:{name}"
        super().init_device()
        # every rank is attached by now, and without a name nothing is left when they are killed
        for path in _SHARED_MEMORY.glob(f"{name}-*"):
            path.unlink(missing_ok=True)
