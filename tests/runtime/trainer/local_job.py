"""A whole job without a cluster: real engines, a real trainer pod, each the process its pod would run."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine_life import wait_until_live
from pod_builder import free_port, rollout_environment
from trainer_pod import TrainerPod

from grpo_api.contract.environment import Env
from grpo_api.contract.run_config import RunConfig

CLI = (sys.executable, "-m", "grpo_runtime.cli")


@dataclass(frozen=True)
class LocalEngines:
    """Running engines; `host` is what GRPO_ROLLOUT_HOST must say."""

    processes: tuple[subprocess.Popen[bytes], ...]
    host: str


@contextmanager
def local_engines(folder: Path, run: RunConfig, *, count: int) -> Iterator[LocalEngines]:
    """`count` engines of `run`, live inside the block and ended after it."""
    ports = [free_port() for _ in range(count)]
    processes = [_start_engine(folder, run, index=index, port=port) for index, port in enumerate(ports)]
    try:
        for index, port in enumerate(ports):
            wait_until_live(port, processes[index], log=folder / f"engine-{index}.log")
        yield LocalEngines(tuple(processes), ",".join(f"127.0.0.1:{port}" for port in ports))
    finally:
        for process in processes:
            process.kill()
            process.wait()


def start_trainer(
    folder: Path,
    run: RunConfig,
    engines: LocalEngines | None = None,
    *,
    attempt: int = 1,
    environment: Mapping[str, str] | None = None,
) -> TrainerPod:
    """The trainer pod of `run`, with the command of its container; it has its own engines or these."""
    return TrainerPod(
        folder,
        run,
        attempt=attempt,
        command=lambda log, port, rendezvous_port: [
            *(*CLI, "trainer", "--termination-log", log),
            *("--port", port, "--rendezvous-port", rendezvous_port),
        ],
        environment={**({Env.ROLLOUT_HOST: engines.host} if engines else {}), **(environment or {})},
    )


def _start_engine(folder: Path, run: RunConfig, *, index: int, port: int) -> subprocess.Popen[bytes]:
    environment = rollout_environment(folder, run, instance=f"engine-{index}")
    log = folder / f"engine-{index}.termination-log"
    command = [*CLI, "rollout", "--host", "127.0.0.1", "--port", str(port), "--termination-log", str(log)]
    with (folder / f"engine-{index}.log").open("ab") as output:
        return subprocess.Popen(command, env=os.environ | environment, stdout=output, stderr=output)
