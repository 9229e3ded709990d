"""`grpo-runtime run` as a process, and ways to watch it and to send it signals."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from forks import Fork, ScriptServer
from polling import DEADLINE_SECONDS, wait_until

FAKE_RUN = (sys.executable, str(Path(__file__).with_name("fake_run.py")))
COMMANDS = ScriptServer(module="grpo_runtime.local.command")
"""Forks every command with fake roles of this test session, but for those with other streams."""
STARTED: list[subprocess.Popen[bytes] | Fork] = []


def end_what_is_left() -> None:
    """Kill the commands that a failed test did not wait for; what they started dies with them."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.wait()


def job_object(**spec: Any) -> dict[str, Any]:
    """A small disaggregated job; keyword arguments replace sections of its spec, None removes one."""
    merged = {
        "model": {"source": "builtin://tiny"},
        "dataset": {"source": "builtin://copy"},
        "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
        "algorithm": {"steps": 8},
        "rollout": {"replicas": 1},
        **spec,
    }
    return {
        "apiVersion": "grpo.dev/v1alpha1",
        "kind": "GRPOJob",
        "metadata": {"name": "copy"},
        "spec": {name: value for name, value in merged.items() if value is not None},
    }


class LocalCommand:
    """One `grpo-runtime run` of a job with its output in `folder`; with fake roles unless `command` is
    another. `gpus` are those of the machine. `data_check` is a shell script with the arguments
    `--termination-log FILE`.

    With `is_on_terminal` its standard streams are a terminal of its own, in which `type_control_c` types and
    which `close_terminal` closes. With `is_piped` they are a pipe whose reader `close_pipe` ends.
    """

    def __init__(
        self,
        folder: Path,
        job: dict[str, Any],
        *,
        attempts: dict[int, Any] | None = None,
        engine: dict[int, int] | None = None,
        data_check: str = "true",
        gpus: str = "",
        command: tuple[str, ...] = FAKE_RUN,
        is_on_terminal: bool = False,
        is_piped: bool = False,
    ) -> None:
        self.output = folder / "out"
        self._engine_starts = folder / "engines.jsonl"
        self._log = folder / "screen"
        file = folder / "job.yaml"
        file.write_text(yaml.safe_dump(job))
        self._marker = f"FAKE_ENGINES={self._engine_starts}".encode()
        environment = os.environ | {
            "FAKE_ATTEMPTS": json.dumps(attempts or {}),
            "FAKE_ENGINE": json.dumps(engine or {}),
            "FAKE_ENGINES": str(self._engine_starts),
            "FAKE_GPUS": gpus,
            "FAKE_DATA_CHECK": data_check,
        }
        arguments = [*command, str(file), str(self.output)]
        self.process: subprocess.Popen[bytes] | Fork
        if is_on_terminal:
            self._master, slave = pty.openpty()
            streams: dict[str, Any] = {"stdin": slave, "stdout": slave, "stderr": slave}
            # as a shell does it: a session whose terminal this is
            arguments = ["env", "--default-signal=HUP", "setsid", "--ctty", "--wait", *arguments]
            self.process = subprocess.Popen(arguments, env=environment, **streams)
            os.close(slave)
        elif is_piped:
            self._reader, writer = os.pipe()
            self.process = subprocess.Popen(arguments, env=environment, stdout=writer, stderr=writer)
            os.close(writer)
        elif command == FAKE_RUN:
            self.process = COMMANDS.start(
                Path(FAKE_RUN[-1]), str(file), str(self.output), environment=environment, output=self._log
            )
        else:
            with self._log.open("ab") as log:
                self.process = subprocess.Popen(arguments, env=environment, stdout=log, stderr=log)
        STARTED.append(self.process)

    def screen(self) -> str:
        return self._log.read_text()

    def type_control_c(self) -> None:
        os.write(self._master, b"\x03")

    def close_terminal(self) -> None:
        os.close(self._master)

    def close_pipe(self) -> None:
        os.close(self._reader)

    def read_terminal(self) -> str:
        """What is on the terminal once the command has ended."""
        text = b""
        while True:
            try:
                text += (more := os.read(self._master, 65536))
            except OSError:  # no process has it open any more
                break
            if not more:
                break
        return text.decode()

    def variables(self, attempt: int) -> dict[str, str]:
        """The contract's variables in the environment of trainer 0 of an attempt."""
        return json.loads((self.output / f"variables-{attempt}.json").read_text())

    def trainer_gpus(self, attempt: int) -> str:
        """The GPUs that trainer 0 of an attempt sees."""
        return (self.output / f"gpus-{attempt}").read_text()

    def engines(self) -> list[dict[str, Any]]:
        """Every start of an engine so far."""
        if not self._engine_starts.exists():
            return []
        return [json.loads(line) for line in self._engine_starts.read_text().splitlines()]

    def num_steps(self) -> int:
        path = self.output / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def checkpoint(self) -> str | None:
        """The name of the newest one."""
        latest = self.output / "checkpoints/LATEST"
        return latest.read_text().strip() if latest.exists() else None

    def has_pending(self, number: signal.Signals) -> bool:
        """Whether a signal was sent to the command that it has not received yet."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (pending,) = re.findall(r"^ShdPnd:\s*(\w+)$", status, re.M)
        return bool(int(pending, 16) >> (number - 1) & 1)

    def wait_for_steps(self, number: int, *, seconds: float = DEADLINE_SECONDS) -> None:
        wait_until(lambda: self.num_steps() >= number, f"{number} steps", seconds=seconds)

    def others(self) -> list[int]:
        """Processes that this command started, directly or not, and that still run."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != self.process.pid:
                try:
                    is_ours = self._marker in (folder / "environ").read_bytes().split(b"\0")
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
                if is_ours:
                    found.append(int(folder.name))
        return found

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self, *, seconds: float = DEADLINE_SECONDS) -> int:
        code = self.process.wait(timeout=seconds)
        assert self.others() == [], "processes outlive the command"
        return code
