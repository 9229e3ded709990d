"""Waits for what another process or task does, and fails the test after a deadline."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

DEADLINE_SECONDS = 120.0
"""For what comes in a moment; a machine may be busy with other tests."""


def wait_until(condition: Callable[[], Any], what: str, *, seconds: float = DEADLINE_SECONDS) -> None:
    """Return once `condition` is true; the test fails with `what` it waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited for: {what}"
        time.sleep(0.02)


async def until(condition: Callable[[], Any], *, seconds: float = 60.0) -> None:
    """Return once it is true, while the loop goes on; the test fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
