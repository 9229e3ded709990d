"""Rows of a `reasoning-gym://` dataset, and its own scorer."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

from grpo_runtime.errors import UserError

DEFAULT_SIZE = 1000
"""Problems of a task whose URL names no `size`."""
ENTRY_INDEX = "entry_index"
"""Column with a problem's number in its task: its scorer makes the same problem from it again."""
SAME_EVERYWHERE = {"PYTHONHASHSEED": "0"}
"""Environment of every process that makes problems: some tasks draw from sets, whose order is random else."""


def without_day(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns of a dataset's row that are the same on every day: all, but for a problem's metadata.

    time_intervals notes today's date there; its question and answer do not depend on it.
    """
    if ENTRY_INDEX not in columns:
        return columns
    return {name: value for name, value in columns.items() if name != "metadata"}


def read_reasoning_gym(url: str, *, seed: int) -> list[dict[str, Any]]:
    """The problems of the task named by `url`: columns prompt, answer, metadata and `entry_index`.

    The same for the same URL and seed on every machine. They are made in a process of their own. Raises
    UserError for a task or setting that there is none of, and ChildProcessError, which a retry may cure, when
    that process was killed.
    """
    made = subprocess.run(
        [sys.executable, "-m", "grpo_runtime.data.reasoning_gym_task", url, str(seed)],
        env=os.environ | SAME_EVERYWHERE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    if made.returncode < 0:
        # before anything is read: its last line may be cut
        name = signal.Signals(-made.returncode).name
        raise ChildProcessError(
            f"the process that makes the problems of dataset.source ({url}) was killed by {name}"
            + (": most likely the container's memory was used up" if name == "SIGKILL" else "")
        )
    lines = [json.loads(line) for line in made.stdout.splitlines()]
    if lines and "user_error" in lines[-1]:
        raise UserError(lines[-1]["user_error"])
    if made.returncode != 0:
        raise UserError(
            f"dataset.source ({url}): making its problems ended with code {made.returncode}; see the log"
        )
    return lines
