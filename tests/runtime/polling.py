"""Waits for what another process does, and fails the test after a deadline."""

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
