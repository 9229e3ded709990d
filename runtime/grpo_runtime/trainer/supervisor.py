"""Process 1 of a trainer pod: starts the ranks, reports for them, ends with the code of the first to fail.

Never imports torch: it must answer while training blocks, and outlive ranks that run out of memory.
"""

import logging
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_api.contract.endpoints import RENDEZVOUS_PORT, TRAINER_PORT
from grpo_api.contract.graces import RANKS_GRACE_SECONDS
from grpo_api.contract.progress import Progress, TrainerState
from grpo_runtime.errors import UserError
from grpo_runtime.report.progress import ProgressFile, read_progress
from grpo_runtime.settings import TrainerSettings, read_trainer_settings
from grpo_runtime.termination import Outcome, termination_message
from grpo_runtime.trainer.endpoint import Endpoint
from grpo_runtime.trainer.failure import describe_failure, find_failure
from grpo_runtime.trainer.gang import Gang, RankDeath, wait_for_signal
from grpo_runtime.trainer.nursery import STOP_SIGNALS, SUPERVISOR_PID
from grpo_runtime.trainer.outcome import judge

logger = logging.getLogger(__name__)

RANKS_COMMAND = (sys.executable, "-m", "grpo_runtime.cli", "ranks")
"""What forks the ranks; the run directory is appended."""

_PEERS_MAY_FINISH_SECONDS = 10.0
"""How long the other ranks get to end after one failed, before they are killed."""
_CAUSE_MAY_FOLLOW_SECONDS = 1.0
"""A rank that lost a peer may be seen to end before that peer."""


@dataclass(frozen=True)
class SupervisorOptions:
    """What differs between a pod and a shell. `grace_seconds` must end before the pod's own grace period."""

    host: str = ""
    """Address to listen on; empty means all."""
    port: int = TRAINER_PORT
    rendezvous_port: int = RENDEZVOUS_PORT
    grace_seconds: float = RANKS_GRACE_SECONDS
    termination_log: Path = Path("/dev/termination-log")
    ranks_command: Sequence[str] = RANKS_COMMAND


def supervise(environment: Mapping[str, str], *, options: SupervisorOptions) -> int:
    """Run the trainer of this pod to its end and return the exit code of the pod."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS | {signal.SIGCHLD})
    try:
        settings = read_trainer_settings(environment)
    except UserError as error:
        words = describe_failure(error)
        return _end(Outcome(words.exit_code, words.reason, words.message), None, options)
    run_dir = _fresh_run_dir(settings)
    endpoint = Endpoint(run_dir, port=options.port, host=options.host)
    gang = Gang(
        [*options.ranks_command, "--run-dir", str(run_dir)],
        ranks_environment(settings, environment, rendezvous_port=options.rendezvous_port),
        run_dir=run_dir,
    )
    deaths, is_stop_requested = _watch(gang, grace_seconds=options.grace_seconds)
    progress = read_progress(run_dir)
    failures = {
        death.local_rank: words
        for death in deaths
        if (words := find_failure(run_dir, local_rank=death.local_rank)) is not None
    }
    outcome = judge(deaths, failures, progress=progress, is_stop_requested=is_stop_requested)
    code = _end(outcome, progress, options)
    endpoint.close()
    return code


def ranks_environment(
    settings: TrainerSettings, environment: Mapping[str, str], *, rendezvous_port: int
) -> dict[str, str]:
    """What the ranks of this pod have in common: the pod's own environment and torch's static rendezvous."""
    topology = settings.run.topology
    return {
        # more threads than one change the order of sums, and ranks share the pod's cores
        "OMP_NUM_THREADS": "1",
        **environment,
        "MASTER_ADDR": settings.master_addr,
        "MASTER_PORT": str(rendezvous_port),
        "WORLD_SIZE": str(topology.world_size),
        "LOCAL_WORLD_SIZE": str(topology.processes_per_node),
        "GROUP_RANK": str(settings.node_index),
        SUPERVISOR_PID: str(os.getpid()),
    }


def _fresh_run_dir(settings: TrainerSettings) -> Path:
    """An empty directory for what the ranks tell us; on pod 0 with a first progress in it."""
    run_dir = settings.cache_dir / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    if settings.node_index == 0:
        ProgressFile(
            run_dir,
            Progress(
                job_uid=settings.run.job.uid,
                attempt=settings.attempt,
                state=TrainerState.STARTING,
                total_steps=settings.run.algorithm.steps,
                message="the training processes are starting",
            ),
        )
    return run_dir


def _watch(gang: Gang, *, grace_seconds: float) -> tuple[list[RankDeath], bool]:
    """Wait until every rank has ended; stop them on request, and when one of them fails.

    Returns the deaths in order, and whether a stop was requested.
    """
    deaths: list[RankDeath] = []
    terminate_at: float | None = None
    kill_at: float | None = None
    is_stop_requested = False
    while gang.is_alive:
        until = min((moment for moment in (terminate_at, kill_at) if moment is not None), default=None)
        arrived = wait_for_signal({*STOP_SIGNALS, signal.SIGCHLD}, until=until)
        now = time.monotonic()
        deaths += (new := gang.reap())
        if arrived in STOP_SIGNALS and not is_stop_requested:
            is_stop_requested = True
            gang.send(signal.SIGTERM)
            kill_at = min(kill_at if kill_at is not None else math.inf, now + grace_seconds)
        if any(death.exit_code != 0 for death in new) and terminate_at is None and not is_stop_requested:
            terminate_at = now + _CAUSE_MAY_FOLLOW_SECONDS
        if terminate_at is not None and now >= terminate_at:
            gang.send(signal.SIGTERM)
            terminate_at, kill_at = None, kill_at or now + _PEERS_MAY_FINISH_SECONDS
        if kill_at is not None and now >= kill_at and gang.is_alive:
            gang.kill()
            kill_at = None
    return deaths, is_stop_requested


def _end(outcome: Outcome, progress: Progress | None, options: SupervisorOptions) -> int:
    print(f"{outcome.reason} (exit code {outcome.exit_code}): {outcome.message}", file=sys.stderr, flush=True)
    try:
        options.termination_log.write_text(termination_message(outcome, progress))
    except OSError as error:
        # outside a container there is no such file, and the sentence above is on the terminal
        print(f"no termination message written: {error}", file=sys.stderr)
    return outcome.exit_code
