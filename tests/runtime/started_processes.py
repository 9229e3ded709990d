"""Processes that tests started, so that those of a failed test can be ended."""

import os
import signal
from typing import Protocol


class Started(Protocol):
    """What is needed of a process."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


STARTED: list[Started] = []
"""Every process of this test session that leads a session of its own."""


def end_what_is_left() -> None:
    """Kill the processes that a failed test did not wait for, with their process groups."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
