"""Starts trainer pods over FakeEngines in `fake_trainer`, and watches them as subprocess would."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class ForkedPod:
    """A pod that a server has forked, with what Popen has of a process."""

    def __init__(self, pid: int, server: "PodServer") -> None:
        self.pid = pid
        self._server = server
        self._handle = os.pidfd_open(pid)
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative after a signal; None while it runs."""
        return self._code_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises TimeoutExpired."""
        if (code := self._code_within(timeout)) is None:
            raise subprocess.TimeoutExpired(f"pod {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        signal.pidfd_send_signal(self._handle, number)

    def _code_within(self, seconds: float | None) -> int | None:
        if self._code is None:
            end = select.poll()
            end.register(self._handle, select.POLLIN)
            if end.poll(None if seconds is None else 1000 * seconds):
                self._code = self._server.ask({"ended": self.pid})
                os.close(self._handle)
        return self._code


class PodServer:
    """The process that forks pods; it starts with the first."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def start_pod(self, arguments: Sequence[str], *, environment: Mapping[str, str], log: Path) -> ForkedPod:
        """One more pod."""
        request = {"arguments": list(arguments), "environment": dict(environment), "log": str(log)}
        return ForkedPod(self.ask(request), self)

    def ask(self, request: dict[str, Any]) -> int:
        """The answer to a request."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("fake_trainer.py"))],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it; pods that still run are ended by their tests."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


POD_SERVER = PodServer()
"""Of this test session."""
