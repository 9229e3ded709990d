"""Waits for a condition, with a deadline."""

import time
from collections.abc import Callable

from grpo_cluster.settings import ClusterError

POLL_SECONDS = 0.05


def wait_until(
    is_true: Callable[[], bool],
    *,
    timeout_seconds: float,
    what: str,
    poll_seconds: float = POLL_SECONDS,
    hint: Callable[[], str] = lambda: "",
) -> None:
    """Return as soon as `is_true()` is true.

    Raises ClusterError "waited N s for WHAT" followed by `hint()` after `timeout_seconds`.
    """
    deadline = time.monotonic() + timeout_seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise ClusterError(f"waited {timeout_seconds:.0f} s for {what}\n{hint()}".rstrip())
        time.sleep(poll_seconds)
