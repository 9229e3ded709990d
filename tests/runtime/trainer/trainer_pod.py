"""A trainer pod as a real process over FakeEngines, and ways to watch and hurt it."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from forks import SCRIPT_SERVER, VLLM_SERVER, Fork, ScriptServer
from pod_builder import free_port, trainer_environment
from started_processes import STARTED

from grpo_api.contract.progress import Progress, TerminationMessage
from grpo_api.contract.run_config import RunConfig
from grpo_runtime.report.progress import read_progress
from grpo_runtime.supervisor.fork_server import find_ranks

DEADLINE_SECONDS = 600.0


FAKES = (SCRIPT_SERVER, Path(__file__).with_name("fake_trainer.py"))
REAL = (VLLM_SERVER, Path(__file__).with_name("vllm_trainer.py"))
"""What forks a trainer pod, and its script: over FakeEngines, or with engines as its job has them."""
MakeCommand = Callable[[str, str, str], list[str]]
"""From termination log, port and rendezvous port to the command of a pod."""


class TrainerPod:
    """One attempt of a job whose output lies in `folder`, a fork or the process of a `command`.

    With `hang_at` the FakeEngines never finish the generation of that step.
    """

    def __init__(
        self,
        folder: Path,
        run: RunConfig,
        *,
        attempt: int = 1,
        node_index: int = 0,
        rendezvous_port: int | None = None,
        hang_at: int | None = None,
        fork: tuple[ScriptServer, Path] = FAKES,
        command: MakeCommand | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._name = f"{attempt}-{node_index}"
        self._log = folder / f"termination-log-{self._name}"
        given = trainer_environment(folder, run, attempt=attempt, node_index=node_index)
        variables = {**os.environ, **given, **(environment or {})}
        if hang_at is not None:
            variables["FAKE_HANG_AT"] = str(hang_at)
        places = (str(self._log), str(free_port()), str(rendezvous_port or free_port()))
        log = folder / f"log-{self._name}"
        self.process: subprocess.Popen[bytes] | Fork
        if command is None:
            server, script = fork
            self.process = server.start(
                script,
                *places,
                environment=variables,
                output=log,
                strategy=run.strategy.value,
            )
        else:
            with log.open("wb") as file:
                # a session of its own, so that what a failed test leaves can be ended as a whole
                self.process = subprocess.Popen(
                    command(*places), env=variables, stdout=file, stderr=file, start_new_session=True
                )
            STARTED.append(self.process)

    def progress(self) -> Progress | None:
        return read_progress(self._folder / f"cache-{self._name}" / "run")

    def wait_until(self, condition: Callable[[Progress], bool]) -> Progress:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            progress = self.progress()
            if progress is not None and condition(progress):
                return progress
            assert self.process.poll() is None, f"the trainer ended early\n{self.log()}"
            assert time.monotonic() < deadline, f"it never came to that: {progress}"
            time.sleep(0.05)

    def log(self) -> str:
        return self.whole_log()[-8000:]

    def whole_log(self) -> str:
        return (self._folder / f"log-{self._name}").read_text(errors="replace")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill_rank(self, local_rank: int) -> None:
        os.kill(self.ranks()[local_rank], signal.SIGKILL)

    def ranks(self) -> Sequence[int]:
        """The process ids of the ranks by local rank; none before they are forked."""
        return find_ranks(self._folder / f"cache-{self._name}" / "run")

    def end(self) -> tuple[int, TerminationMessage]:
        code = self.process.wait(timeout=DEADLINE_SECONDS)
        return code, TerminationMessage.model_validate_json(self._log.read_text())
