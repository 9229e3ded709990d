"""Starts scripts of tests as forks of `script_server`, and watches them as subprocess would."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from started_processes import STARTED

HUNG_SECONDS = 120.0
"""Ranks that wait for each other at different places would do so for half an hour."""
_CAUSE_MAY_FOLLOW_SECONDS = 1.0
"""As the supervisor's."""
# where Python does not buffer, a line and its end are two writes, between which another rank may write
_ENVIRONMENT = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
_FOLDER = Path.cwd()
"""Those of the session's start: a server outlives the test that forks first, and what that test changes."""


class Fork:
    """A process that the server has forked, with what Popen has of one."""

    def __init__(self, pid: int, server: "ScriptServer") -> None:
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
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Does nothing once it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def fileno(self) -> int:
        """Readable once it has ended, until its exit code is asked for."""
        return self._handle

    def _code_within(self, seconds: float | None) -> int | None:
        if self._code is None:
            end = select.poll()
            end.register(self._handle, select.POLLIN)
            if end.poll(None if seconds is None else 1000 * seconds):
                self._code = self._server.ask({"ended": self.pid})
                os.close(self._handle)
        return self._code


class ScriptServer:
    """The process that forks, when it has imported a module; it starts with the first fork."""

    def __init__(self, *, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[str] | None = None

    def start(
        self,
        script: Path,
        *arguments: str,
        environment: Mapping[str, str],
        output: Path,
        errors: Path | None = None,
        strategy: str = "",
        ends_with_test: bool = True,
    ) -> Fork:
        """One more fork, that runs `script` with this environment. What it prints is added to the file
        `output`, also its errors unless they have another. Where it trains with DeepSpeed, `strategy` says
        so. One of a fixture for several tests does not end with the test that it is started in."""
        request = {
            "script": str(script),
            "arguments": arguments,
            "environment": dict(environment),
            "output": str(output),
            "errors": str(errors or output),
            "needs_deepspeed": strategy.startswith("ZeRO"),
        }
        output.touch()
        fork = Fork(self.ask(request), self)
        if ends_with_test:
            STARTED.append(fork)
        return fork

    def ask(self, request: dict[str, Any]) -> int:
        """The answer to a request."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("script_server.py")), self._module],
                env=_ENVIRONMENT | {"OMP_NUM_THREADS": "1"},
                cwd=_FOLDER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            code, self._process = self._process.wait(), None
            raise ChildProcessError(f"the server of scripts ended with {code}: its stderr says why")
        return int(answer)

    def close(self) -> None:
        """End it, and with it what it has forked."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


SCRIPT_SERVER = ScriptServer(module="imports_of_ranks")
"""Of this test session, for what runs without vLLM."""
VLLM_SERVER = ScriptServer(module="vllm_imports")
"""Of this test session, for pods with a real engine: importing torch and vLLM takes them longer than most of
them run."""
VLLM_COMMAND = Path(__file__).with_name("vllm_command.py")
"""`grpo-runtime`, for its forks."""


def start_ranks(
    num_ranks: int,
    script: Path,
    *arguments: str,
    environment: Mapping[str, str],
    output: Path,
    errors: Path | None = None,
    strategy: str = "",
) -> list[Fork]:
    """A fork for each rank, which RANK and LOCAL_RANK name; see `ScriptServer.start`."""
    return [
        SCRIPT_SERVER.start(
            script,
            *arguments,
            environment={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            output=output,
            errors=errors,
            strategy=strategy,
        )
        for rank in range(num_ranks)
    ]


def exit_codes(ranks: Sequence[Fork], *, seconds: float = HUNG_SECONDS) -> list[int | None]:
    """Those of ranks that wait for one another, once all have ended. A moment after the first that ends badly
    the others are killed, as the supervisor does it: theirs are None. One that lost a rank may be seen to end
    before that rank. Raises TimeoutError after `seconds`, when none of them is left."""
    deadline = time.monotonic() + seconds
    kill_at = deadline
    running = list(ranks)
    killed: list[Fork] = []
    while running:
        ended, _, _ = select.select(running, [], [], max(0.0, kill_at - time.monotonic()))
        if not ended:
            killed = running
            for rank in killed:
                rank.send_signal(signal.SIGKILL)
            for rank in killed:
                rank.wait()
            if kill_at == deadline:
                raise TimeoutError(f"{len(killed)} of {len(ranks)} ranks still ran after {seconds:.0f} s")
            break
        over = [rank for rank in running if rank in ended or rank.poll() is not None]
        running = [rank for rank in running if rank not in over]
        if kill_at == deadline and any(rank.wait() != 0 for rank in over):
            kill_at = min(deadline, time.monotonic() + _CAUSE_MAY_FOLLOW_SECONDS)
    codes = [rank.wait() for rank in ranks]
    return [None if rank in killed else code for rank, code in zip(ranks, codes, strict=True)]


def run_ranks(script: Path, *arguments: str, num_ranks: int = 2, strategy: str = "") -> str:
    """What ranks have printed. Fails unless all end with 0 in time."""
    with tempfile.TemporaryDirectory() as folder:
        printed, errors = Path(folder) / "printed", Path(folder) / "errors"
        ranks = start_ranks(
            num_ranks,
            script,
            *arguments,
            environment=os.environ,
            output=printed,
            errors=errors,
            strategy=strategy,
        )
        try:
            codes = exit_codes(ranks)
        except TimeoutError as error:
            raise TimeoutError(f"{script.name}: {error}: {errors.read_text()[-6000:]}") from error
        assert set(codes) == {0}, f"{script.name} ended with {codes}: {errors.read_text()[-6000:]}"
        return printed.read_text()
