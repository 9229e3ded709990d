"""What a rank imports leaves a process that can be forked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pod_builder import run_config, trainer_environment

IMPORT = """
import os, sys
from pathlib import Path
holds_engines = sys.argv[1] == "Shared"
num_threads = os.environ["OMP_NUM_THREADS"]
if holds_engines:
    # vLLM counts GPUs: as on a machine with a driver, which does so without CUDA
    import torch
    torch.cuda._device_count_nvml = lambda: 0
from grpo_runtime.trainer.rank_imports import import_rank
import_rank(run_dir=Path())
assert os.listdir("/proc/self/task") == [str(os.getpid())], "an import started a thread"
import torch
if (fork := os.fork()) == 0:
    os._exit(torch._C._cuda_isInBadFork())
assert os.waitpid(fork, 0)[1] == 0, "an import touched a GPU, if only to count them"
assert ("vllm" in sys.modules) is holds_engines
assert os.environ["OMP_NUM_THREADS"] == num_threads
"""


@pytest.mark.parametrize(("process", "num_threads"), [(None, 2), ("Own", 2), ("Shared", 1)])
def test_imports_start_no_thread_and_touch_no_gpu(
    process: str | None, num_threads: int, tmp_path: Path
) -> None:
    """`process` is that of a colocated engine; without it engines have pods."""
    spec = {"mode": "Colocated", "engine": {"process": process}} if process else {"mode": "Disaggregated"}
    given = trainer_environment(tmp_path, run_config(**spec)) | {"OMP_NUM_THREADS": str(num_threads)}
    subprocess.run([sys.executable, "-c", IMPORT, str(process)], env=os.environ | given, check=True)
