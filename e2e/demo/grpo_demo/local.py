"""The demo on a machine that cannot run containers: trainer and engine as local processes."""

import os
import shutil
import subprocess
from typing import NoReturn

from grpo_cluster.settings import ClusterError
from grpo_images.sources import REPOSITORY

EXAMPLE = "examples/copy-local.yaml"
OUTPUT = "out/demo"


def train_locally() -> NoReturn:
    """Replace this process by `grpo-runtime run`. Raises ClusterError when `make setup` fails."""
    if subprocess.run(["make", "--no-print-directory", "setup"], cwd=REPOSITORY, check=False).returncode:
        raise ClusterError("`make setup` failed: see above")
    os.chdir(REPOSITORY)
    # an existing output would be continued, so it is removed first
    shutil.rmtree(OUTPUT, ignore_errors=True)
    command = [".venv/bin/grpo-runtime", "run", EXAMPLE, "--output", OUTPUT]
    print(f"$ {' '.join(command)}", flush=True)
    os.execv(command[0], command)  # noqa: S606 - no shell is needed
