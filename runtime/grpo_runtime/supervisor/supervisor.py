"""Process 1 of a trainer pod: starts the ranks, serves their progress, and ends with the code of the first
failure.

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
from dataclasses import dataclass, field
from pathlib import Path

from grpo_api.contract.endpoints import HEARTBEAT_SECONDS, RENDEZVOUS_PORT, TRAINER_PORT
from grpo_api.contract.graces import RANKS_GRACE_SECONDS
from grpo_api.contract.progress import Progress, TerminationMessage, TrainerState
from grpo_runtime.errors import KnownError
from grpo_runtime.process.failure import describe_failure, read_failure
from grpo_runtime.process.network import ANY_ADDRESS
from grpo_runtime.process.termination import write_termination_message
from grpo_runtime.report.progress import ProgressFile, progress_json, read_progress
from grpo_runtime.report.prometheus import served_metrics
from grpo_runtime.settings import TrainerSettings, read_trainer_settings
from grpo_runtime.supervisor.endpoint import Endpoint
from grpo_runtime.supervisor.fork_server import STOP_SIGNALS, SUPERVISOR_PID
from grpo_runtime.supervisor.outcome import decide_outcome
from grpo_runtime.supervisor.pages import Pages
from grpo_runtime.supervisor.positions import positions_of_pod
from grpo_runtime.supervisor.rank_processes import (
    RankExit,
    RankProcesses,
    StartForkServer,
    spawned,
    wait_for_signal,
)
from grpo_runtime.supervisor.standstill import StallLimit, Standstill

logger = logging.getLogger(__name__)

RANKS_COMMAND = (sys.executable, "-m", "grpo_runtime.cli", "ranks")
_PEERS_MAY_FINISH_SECONDS = 10.0
"""How long the other ranks have to end after one failed, before they are killed."""
_CAUSE_MAY_FOLLOW_SECONDS = 1.0
"""How long the cause of a failure may follow it: a rank that lost a peer may be seen to end before that
peer."""


@dataclass(frozen=True)
class SupervisorOptions:
    """What differs between a pod and a shell. `grace_seconds` must be below the pod's own grace period."""

    host: str = ANY_ADDRESS
    """Address to listen on."""
    port: int = TRAINER_PORT
    rendezvous_port: int = RENDEZVOUS_PORT
    grace_seconds: float = RANKS_GRACE_SECONDS
    termination_log: Path = Path("/dev/termination-log")
    start_fork_server: StartForkServer = field(default=spawned(RANKS_COMMAND))


def supervise(environment: Mapping[str, str], *, options: SupervisorOptions) -> int:
    """Run the trainer of this pod to its end and return the exit code of the pod."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS | {signal.SIGCHLD})
    try:
        settings = read_trainer_settings(environment)
    except KnownError as error:
        return write_termination_message(describe_failure(error), termination_log=options.termination_log)
    run_dir = _fresh_run_dir(settings)
    endpoint = Endpoint(
        progress=lambda: progress_json(run_dir),
        metrics=lambda num_engines: served_metrics(run_dir, job=settings.run_config.job, desired=num_engines),
        positions=lambda: positions_of_pod(settings).model_dump_json(by_alias=True).encode(),
        pages=Pages(settings.output_dir) if settings.node_index == 0 else None,
        port=options.port,
        host=options.host,
    )
    ranks = RankProcesses(
        ranks_environment(settings, environment, rendezvous_port=options.rendezvous_port),
        run_dir=run_dir,
        start_fork_server=options.start_fork_server,
    )
    watched = _watch(ranks, settings, endpoint, grace_seconds=options.grace_seconds)
    progress = read_progress(run_dir)
    outcome = watched.stalled or decide_outcome(
        watched.exits,
        _failures(watched.exits, run_dir),
        progress=progress,
        is_stop_requested=watched.is_stop_requested,
    )
    code = write_termination_message(
        outcome.model_copy(update={"progress": progress}), termination_log=options.termination_log
    )
    endpoint.close()
    return code


def ranks_environment(
    settings: TrainerSettings, environment: Mapping[str, str], *, rendezvous_port: int
) -> dict[str, str]:
    """What all ranks of this pod get: the pod's own environment and torch's variables for the rendezvous."""
    topology = settings.run_config.topology
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
    """An empty directory for progress and failures of the ranks; on pod 0 with a first progress in it."""
    run_dir = settings.run_dir
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    if settings.node_index == 0:
        ProgressFile(
            run_dir,
            Progress(
                job_uid=settings.run_config.job.uid,
                attempt=settings.attempt,
                state=TrainerState.STARTING,
                total_steps=settings.run_config.total_steps,
                message="the training processes are starting",
            ),
        )
    return run_dir


def _failures(exits: Sequence[RankExit], run_dir: Path) -> dict[int, TerminationMessage]:
    """The failures that ranks wrote before they ended, by local rank."""
    found = {
        rank.local_rank: read_failure(run_dir, local_rank=rank.local_rank, signal_number=rank.signal_number)
        for rank in exits
    }
    return {local_rank: failure for local_rank, failure in found.items() if failure is not None}


@dataclass(frozen=True)
class _Watched:
    """How the ranks ended, in order."""

    exits: Sequence[RankExit]
    is_stop_requested: bool
    stalled: TerminationMessage | None
    """Why they were ended, where they made no progress for too long."""


def _watch(
    ranks: RankProcesses, settings: TrainerSettings, endpoint: Endpoint, *, grace_seconds: float
) -> _Watched:
    """Wait until every rank has ended; stop them on request, when one of them fails, and when they make no
    progress for too long and nobody asks."""
    heartbeat = Heartbeat(settings.heartbeat_file)
    standstill = Standstill(settings, dump_stacks=ranks.dump_stacks)
    limit = StallLimit(settings, now=time.monotonic())
    stalled: TerminationMessage | None = None
    exits: list[RankExit] = []
    terminate_at: float | None = None
    kill_at: float | None = None
    is_stop_requested = False
    while ranks.is_alive:
        moments = (terminate_at, kill_at, heartbeat.beat())
        until = min(moment for moment in moments if moment is not None)
        arrived = wait_for_signal({*STOP_SIGNALS, signal.SIGCHLD}, until=until)
        now = time.monotonic()
        exits += (new := ranks.collect_exits())
        standstill.look()
        if stalled is None:
            progress = read_progress(settings.run_dir)
            stalled = limit.exceeded(progress, asked_at=endpoint.asked_at, now=now)
            if stalled is not None:
                ranks.kill()
        if arrived in STOP_SIGNALS and not is_stop_requested:
            is_stop_requested = True
            ranks.send(signal.SIGTERM)
            kill_at = min(kill_at if kill_at is not None else math.inf, now + grace_seconds)
        if any(rank.exit_code != 0 for rank in new) and terminate_at is None and not is_stop_requested:
            terminate_at = now + _CAUSE_MAY_FOLLOW_SECONDS
        if terminate_at is not None and now >= terminate_at:
            ranks.send(signal.SIGTERM)
            terminate_at, kill_at = None, kill_at or now + _PEERS_MAY_FINISH_SECONDS
        if kill_at is not None and now >= kill_at and ranks.is_alive:
            ranks.kill()
            kill_at = None
    return _Watched(exits, is_stop_requested=is_stop_requested, stalled=stalled)


class Heartbeat:
    """The sign of life for the liveness probe, which nobody can keep from it over the network: a file that
    the main loop touches."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._next = time.monotonic()

    def beat(self) -> float:
        """Touch the file when it is time to; returns when the next beat is due, on the monotonic clock."""
        now = time.monotonic()
        if now >= self._next:
            self._file.touch()
            self._next = now + HEARTBEAT_SECONDS
        return self._next
