"""A whole job without a cluster: real engines, a real trainer pod, each the process its pod would run, or a
fork of one that has imported what they need."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine_life import wait_until_live
from forks import VLLM_COMMAND, VLLM_SERVER, Fork
from pod_builder import free_port, rollout_environment
from trainer_pod import REAL, TrainerPod

from grpo_api.contract.environment import Env
from grpo_api.contract.run_config import RunConfig

CLI = (sys.executable, "-m", "grpo_runtime.cli")
Process = subprocess.Popen[bytes] | Fork


@dataclass(frozen=True)
class LocalEngines:
    """Running engines; `host` is what GRPO_ROLLOUT_HOST must say."""

    processes: tuple[Process, ...]
    host: str


@contextmanager
def local_engines(
    folder: Path, run: RunConfig, *, count: int, is_forked: bool = True
) -> Iterator[LocalEngines]:
    """`count` engines of `run`, live inside the block and ended after it."""
    start = _fork_engine if is_forked else _start_engine
    ports = [free_port() for _ in range(count)]
    processes = [start(folder, run, index=index, port=port) for index, port in enumerate(ports)]
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
    is_forked: bool = True,
) -> TrainerPod:
    """The trainer pod of `run`, which has its own engines or these. It is forked, or the process of its
    container's command; this also where colocated engines have processes of their own, which import vLLM."""
    more = {**({Env.ROLLOUT_HOST: engines.host} if engines else {}), **(environment or {})}
    if is_forked and not run.engine_has_own_process:
        return TrainerPod(folder, run, attempt=attempt, fork=REAL, environment=more)
    return TrainerPod(
        folder,
        run,
        attempt=attempt,
        command=lambda log, port, rendezvous_port: [
            *(*CLI, "trainer", "--termination-log", log),
            *("--port", port, "--rendezvous-port", rendezvous_port),
        ],
        environment=more,
    )


def _start_engine(folder: Path, run: RunConfig, *, index: int, port: int) -> Process:
    environment, log, options = _engine(folder, run, index=index, port=port)
    with log.open("ab") as output:
        return subprocess.Popen(
            [*CLI, "rollout", *options], env=os.environ | environment, stdout=output, stderr=output
        )


def _fork_engine(folder: Path, run: RunConfig, *, index: int, port: int) -> Process:
    environment, log, options = _engine(folder, run, index=index, port=port)
    return VLLM_SERVER.start(
        VLLM_COMMAND,
        "rollout",
        *options,
        environment=os.environ | environment,
        output=log,
        ends_with_test=False,
    )


def _engine(folder: Path, run: RunConfig, *, index: int, port: int) -> tuple[dict[str, str], Path, list[str]]:
    """Environment, log and options of a rollout pod."""
    environment = rollout_environment(folder, run, instance=f"engine-{index}")
    termination_log = folder / f"engine-{index}.termination-log"
    options = ["--host", "127.0.0.1", "--port", str(port), "--termination-log", str(termination_log)]
    return environment, folder / f"engine-{index}.log", options
