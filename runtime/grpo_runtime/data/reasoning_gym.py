"""Rows of a `reasoning-gym://` dataset."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

from grpo_api.source import parse_source
from grpo_runtime.errors import UserError

DEFAULT_SIZE = 1000
"""How many problems a task makes when its URL names no `size`."""
ENTRY_INDEX = "entry_index"
"""Column with the number of a problem in its task. The scorer makes the same problem from it again."""
TASK_URL = "task_url"
"""Column of the problems of an evaluation: the URL of their task with its seed, by which the scorer tells
them from those of training."""
_EVALUATION_SEEDS = 1_000_000_000
"""By so much the seed of an evaluation is above that of training. Problem i of a task is made from the sum of
its seed and i, so seeds that are near to each other have problems in common."""
SAME_EVERYWHERE = {"PYTHONHASHSEED": "0"}
"""Environment of every process that makes problems. Without it sets have a random order, and some tasks draw
from sets."""


def without_day(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row without those that depend on the day: a problem's `metadata`.

    The task time_intervals writes today's date there; its question and answer do not depend on it. Rows of
    other datasets are returned as they are.
    """
    if ENTRY_INDEX not in columns:
        return columns
    return {name: value for name, value in columns.items() if name != "metadata"}


def evaluated_url(url: str, *, seed: int) -> str:
    """The URL of a task that a run with this seed is evaluated on: with a seed of its own, unless it names
    one."""
    if any(name == "seed" for name, _ in parse_source(url).settings):
        return url
    return f"{url}{'&' if '?' in url else '?'}seed={seed + _EVALUATION_SEEDS}"


def read_reasoning_gym(url: str, *, seed: int) -> list[dict[str, Any]]:
    """The problems of the task named by `url`: columns prompt, answer, metadata and `entry_index`.

    They are the same on every machine for the same URL and seed, and are made in a process of their own.
    Raises UserError for an unknown task or setting, and ChildProcessError when that process is killed, which
    a retry may cure.
    """
    made = subprocess.run(
        [sys.executable, "-m", "grpo_runtime.data.reasoning_gym_task", url, str(seed)],
        env=os.environ | SAME_EVERYWHERE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    if made.returncode < 0:
        # checked before its output is read, which may end in the middle of a line
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
