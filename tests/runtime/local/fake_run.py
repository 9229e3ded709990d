"""`grpo-runtime run` over fake roles: `python fake_run.py FILE OUTPUT`, on a machine with FAKE_GPUS."""

import os
import sys
from pathlib import Path

from grpo_runtime.local.command import RunOptions, run
from grpo_runtime.local.context import Programs

if __name__ == "__main__":
    folder = Path(__file__).parent
    programs = Programs(
        trainer=(sys.executable, str(folder / "fake_trainer_pod.py")),
        rollout=(sys.executable, str(folder / "fake_engine.py")),
        data_check=("sh", "-c", os.environ.get("FAKE_DATA_CHECK", "true"), "data-check"),
    )
    file, output = map(Path, sys.argv[1:])
    command = ("grpo-runtime", "run", str(file), "--output", str(output))
    gpus = tuple(os.environ.get("FAKE_GPUS", "").split())
    options = RunOptions(
        file=file, output=output, command=command, programs=programs, find_gpus=lambda _: gpus
    )
    sys.exit(run(options, environment=os.environ))
