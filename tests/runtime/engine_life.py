"""Whether the rollout engine behind a port of this machine lives, and waiting until it does."""

import time
import urllib.error
import urllib.request
from pathlib import Path

from started_processes import Started

from grpo_api.contract.endpoints import ROLLOUT_LIVE_PATH

START_SECONDS = 240.0


def is_live(port: int) -> bool:
    """Whether it says so itself."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{ROLLOUT_LIVE_PATH}", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_until_live(port: int, process: Started, *, log: Path) -> None:
    """Return once it lives; fail with the end of its `log` when `process` has ended, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while not is_live(port):
        code = process.poll()
        assert code is None, f"the engine ended with {code}\n{_end_of(log)}"
        assert time.monotonic() < deadline, f"no engine after {START_SECONDS} s\n{_end_of(log)}"
        time.sleep(0.2)


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-8000:]
