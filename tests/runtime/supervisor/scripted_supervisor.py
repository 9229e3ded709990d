"""The supervisor over ranks that are shell scripts: fast, and no torch anywhere."""

import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from forks import ScriptServer
from pod_builder import free_port, run_config, trainer_environment
from polling import DEADLINE_SECONDS, wait_until

from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.run_config import RunConfig

SUPERVISORS = ScriptServer(module="grpo_runtime.supervisor.supervisor")
"""Forks every supervisor of this test session."""

RANKS = """
import os, signal, sys
from pathlib import Path
from grpo_runtime.supervisor.fork_server import fork_ranks
script, _, run_dir = sys.argv[1:]
run_dir = Path(run_dir)
command = ("/bin/bash", "-c", script, "rank", "--run-dir", str(run_dir))

def import_rank():
    pass
    return lambda environment: os.execve(command[0], command, environment)

fork_ranks(import_rank, run_dir=run_dir)
"""
"""Forks the ranks; what else an import does may stand in the place of `pass`."""


LONG_WAIT_FOR_PEERS = """
from grpo_runtime.supervisor import supervisor
supervisor._PEERS_MAY_FINISH_SECONDS = 600.0
"""
LONG_WAIT_FOR_CAUSE = LONG_WAIT_FOR_PEERS.replace("_PEERS_MAY_FINISH", "_CAUSE_MAY_FOLLOW")


# what a rank that did its work would have written; $2 is the run directory
DONE = 'sed -i s/Starting/Done/ "$2/progress.json"; exit 0'


ONE_RANK = run_config(trainer={"processesPerNode": 1})
TWO_RANKS = run_config(trainer={"processesPerNode": 2})


class Supervisor:
    """A real supervisor process over ranks that run a bash `script`, forked by Python code, `ranks`."""

    def __init__(
        self,
        folder: Path,
        script: str,
        *,
        run: RunConfig = TWO_RANKS,
        node_index: int = 0,
        ranks: str = RANKS,
        grace_seconds: float = 60.0,
        more: Mapping[str, str] = MappingProxyType({}),
        before: str = "",
    ) -> None:
        """`before` is Python code that its process runs first."""
        self.log = folder / "termination-log"
        self._printed = folder / f"log-{node_index}"
        self.port = free_port()
        self.run_dir = folder / f"cache-1-{node_index}" / "run"
        given = trainer_environment(folder, run, node_index=node_index)
        self.process = SUPERVISORS.start(
            Path(__file__).with_name("supervise_scripted.py"),
            *(str(self.port), str(self.log), str(grace_seconds), ranks, script, before),
            environment={**os.environ, **given, **more},
            output=self._printed,
        )

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return answer.read()

    def wait_for(self, path: Path) -> None:
        def is_there() -> bool:
            assert path.exists() or self.process.poll() is None, "the supervisor ended early"
            return path.exists()

        wait_until(is_there, f"{path} to appear")

    def fork_server(self) -> int:
        """Its process id."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def end(self) -> tuple[int, TerminationMessage]:
        code = self.process.wait(timeout=DEADLINE_SECONDS)
        # shown where the test fails
        print(self._printed.read_text(errors="replace"))
        return code, TerminationMessage.model_validate_json(self.log.read_text())


def importing(code: str) -> str:
    """Ranks whose imports do this."""
    return RANKS.replace("pass", code)


def has_ended(pid: int) -> bool:
    """Whether there is no such process, or nobody has collected it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
