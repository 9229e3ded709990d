"""Runs a script whose process forks ranks that wait for one another."""

import os
import signal
import subprocess
import sys
from pathlib import Path

HUNG_SECONDS = 120.0
"""Ranks that wait for each other at different places would do so for half an hour."""


def run_ranks(script: Path, *arguments: str) -> str:
    """What the ranks have printed. Fails unless the script ends with 0 in time, with none of them left."""
    command = [sys.executable, str(script), *arguments]
    # where Python does not buffer, a line and its end are two writes, between which another rank may write
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    # a session of its own, so that a rank that hangs is ended with the one that forked it
    ranks = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed = ranks.communicate(timeout=HUNG_SECONDS)[0]
    finally:
        if ranks.poll() is None:
            os.killpg(ranks.pid, signal.SIGKILL)
            ranks.wait()
    assert ranks.returncode == 0
    return printed
