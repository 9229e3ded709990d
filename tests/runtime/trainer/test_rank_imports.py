"""What a rank imports leaves a process that can be forked."""

import os
import subprocess
import sys
from pathlib import Path

from pod_builder import run_config, trainer_environment

IMPORT = """
import os
from pathlib import Path
from grpo_runtime.trainer.rank_imports import import_rank
import_rank(os.environ, run_dir=Path())
import sys
import torch
assert "grpo_runtime.rollout.vllm_in_process" in sys.modules
assert os.environ["TORCHDYNAMO_DISABLE"] == "1"
assert os.listdir("/proc/self/task") == [str(os.getpid())], "an import started a thread"
assert not torch.cuda.is_initialized(), "an import touched a GPU"
"""


def test_imports_start_no_thread_and_touch_no_gpu(tmp_path: Path) -> None:
    # with vLLM, which is the most there is
    given = trainer_environment(tmp_path, run_config(mode="Colocated"))
    subprocess.run(
        [sys.executable, "-c", IMPORT], env={"OMP_NUM_THREADS": "1", **os.environ, **given}, check=True
    )
