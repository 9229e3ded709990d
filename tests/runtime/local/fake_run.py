"""`grpo-runtime run` over fake roles: `python fake_run.py FILE OUTPUT`."""

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
    )
    file, output = map(Path, sys.argv[1:])
    command = ("grpo-runtime", "run", str(file), "--output", str(output))
    options = RunOptions(file=file, output=output, command=command, programs=programs)
    sys.exit(run(options, environment=os.environ))
