"""What every part of a local job shares: the RunConfig, the output directory, the processes and the
screen."""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.local.gpus import GpuShares
from grpo_runtime.local.process_table import ProcessTable
from grpo_runtime.local.workspace import Workspace

_CLI = (sys.executable, "-m", "grpo_runtime.cli")


@dataclass(frozen=True)
class Programs:
    """The commands of the two roles, as in the containers of their pods, and of what looks at the data
    before."""

    trainer: Sequence[str] = (*_CLI, "trainer")
    rollout: Sequence[str] = (*_CLI, "rollout")
    data_check: Sequence[str] = (sys.executable, "-m", "grpo_runtime.trainer.data_check")


@dataclass(frozen=True)
class LocalContext:
    """`environment` is what all processes inherit; `say` prints a sentence for the person at the terminal."""

    run_config: RunConfig
    workspace: Workspace
    processes: ProcessTable
    programs: Programs
    environment: Mapping[str, str]
    gpus: GpuShares
    say: Callable[[str], None]

    def fresh_cache(self, name: str) -> Path:
        """An empty cache directory for a process, as a new pod has one."""
        cache = self.workspace.cache(name)
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        return cache

    def fresh_termination_log(self, name: str) -> Path:
        """Where a process will write its termination message; that of an earlier one is removed."""
        path = self.workspace.termination_log(name)
        path.unlink(missing_ok=True)
        return path
