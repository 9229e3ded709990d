"""What a rank imports leaves a process that can be forked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pod_builder import run_config, trainer_environment

pytestmark = pytest.mark.processes

IMPORT = """
import json, os, sys
from pathlib import Path
num_threads = os.environ["OMP_NUM_THREADS"]
holds_engines, *variables = map(json.loads, sys.argv[1:])
if holds_engines:
    # vLLM counts GPUs: as on a machine with a driver, which does so without CUDA
    import torch
    torch.cuda._device_count_nvml = lambda: 0
from grpo_runtime.trainer.rank_imports import import_rank
for of_one_run in variables:
    os.environ.update(of_one_run)
    import_rank(run_dir=Path())
    assert os.listdir("/proc/self/task") == [str(os.getpid())], "an import started a thread"
    import torch
    if (fork := os.fork()) == 0:
        os._exit(torch._C._cuda_isInBadFork())
    assert os.waitpid(fork, 0)[1] == 0, "an import touched a GPU, if only to count them"
    assert ("vllm" in sys.modules) is holds_engines
    assert "deepspeed" not in sys.modules, "runs with another strategy would wait for it"
    assert os.environ["OMP_NUM_THREADS"] == num_threads
"""


def run_of(process: str | None, folder: Path) -> dict[str, str]:
    """The environment of a trainer. `process` is that of a colocated engine; without it engines have pods."""
    spec = {"mode": "Colocated", "engine": {"process": process}} if process else {"mode": "Disaggregated"}
    return trainer_environment(folder, run_config(**spec))


@pytest.mark.parametrize(("processes", "num_threads"), [((None, "Own"), 2), (("Shared",), 1)])
def test_imports_start_no_thread_and_touch_no_gpu(
    processes: tuple[str | None, ...], num_threads: int, tmp_path: Path
) -> None:
    holds_engines = processes == ("Shared",)
    runs = [run_of(process, tmp_path / str(process)) for process in processes]
    subprocess.run(
        [sys.executable, "-c", IMPORT, *map(json.dumps, (holds_engines, *runs))],
        env=os.environ | {"OMP_NUM_THREADS": str(num_threads)},
        check=True,
    )
