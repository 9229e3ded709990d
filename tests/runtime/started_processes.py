"""Processes that tests started, so that those of a failed test can be ended."""

import os
import signal
import subprocess

STARTED: list[subprocess.Popen[bytes]] = []
"""Every process of this test session that leads a session of its own."""


def end_what_is_left() -> None:
    """Kill the processes that a failed test did not wait for, with their process groups."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
