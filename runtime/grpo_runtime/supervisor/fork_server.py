"""The fork server: one process imports what the ranks need, and each rank is a fork of it. No torch here.

Torch, transformers and vLLM take seconds of CPU time and hundreds of megabytes to import; so a pod pays for
them once and not for each rank. The fork server ends as soon as it has forked the ranks. They then become the
supervisor's children, because the supervisor adopts orphans, and it alone sees how they end.
"""

import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from grpo_runtime.errors import UserError
from grpo_runtime.process.failure import write_failure
from grpo_runtime.process.lasting_imports import lasting_imports
from grpo_runtime.process.lifetime import die_with
from grpo_runtime.storage.files import write_atomically

SUPERVISOR_PID = "SUPERVISOR_PID"
"""The supervisor's process id, for the fork server and the ranks: the kernel kills them when that process
ends. In a pod they would end with it anyway, on a machine they would not."""
RENDEZVOUS_VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", SUPERVISOR_PID),
    }
)
"""Variables with the number of a rank and where the ranks meet. A trainer must not inherit those of
another."""

STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_PIDS_FILE = "ranks.json"

RunRank = Callable[[Mapping[str, str]], NoReturn]
"""What a rank does with its environment."""


def fork_ranks(import_rank: Callable[[], RunRank], *, run_dir: Path) -> NoReturn:
    """Import what ranks need, fork them, write their process ids to `run_dir`, and end.

    The environment has the supervisor's process id and two of torchrun's variables: GROUP_RANK, the index of
    this pod, and LOCAL_WORLD_SIZE, the number of its ranks. No import may start a thread.

    A rank waits until this process has ended, and exits if this process was killed before it wrote the
    process ids. A stop signal that arrives here after a fork reaches no rank; the supervisor sends it again
    to the ranks it adopts. An error here is written to `run_dir` as the failure of rank 0.
    """
    fork_server_pid = os.getpid()
    try:
        _fork_ranks(import_rank, run_dir=run_dir)
    except BaseException as error:
        if os.getpid() != fork_server_pid:
            # a fork that failed before it was a rank
            traceback.print_exc()
            os._exit(1)
        os._exit(write_failure(run_dir, error, local_rank=0))
    os._exit(0)


def find_ranks(run_dir: Path) -> Sequence[int]:
    """The process ids of the ranks by local rank; none if the fork server ended before it had forked them."""
    path = run_dir / _PIDS_FILE
    return [int(pid) for pid in json.loads(path.read_text())] if path.exists() else []


def _fork_ranks(import_rank: Callable[[], RunRank], *, run_dir: Path) -> None:
    if SUPERVISOR_PID not in os.environ:
        raise UserError(f"{SUPERVISOR_PID} is not set: `grpo-runtime trainer` starts the ranks")
    supervisor = int(os.environ[SUPERVISOR_PID])
    die_with(supervisor)
    with lasting_imports():
        run_rank = import_rank()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    sys.stdout.flush()
    sys.stderr.flush()
    fork_server = os.pidfd_open(os.getpid())
    pids = []
    for variables in _variables_of_each_rank():
        if (pid := os.fork()) == 0:
            _wait_for_adoption(fork_server, supervisor=supervisor)
            if os.getpid() not in find_ranks(run_dir):
                # the fork server was killed before it wrote this process's id: the supervisor does not know
                # it
                os._exit(1)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            os.environ.update(variables)
            run_rank(os.environ)
        pids.append(pid)
    write_atomically(run_dir / _PIDS_FILE, json.dumps(pids))


def _variables_of_each_rank() -> list[dict[str, str]]:
    num_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    first = int(os.environ["GROUP_RANK"]) * num_ranks
    return [
        {"RANK": str(first + local_rank), "LOCAL_RANK": str(local_rank)} for local_rank in range(num_ranks)
    ]


def _wait_for_adoption(fork_server: int, *, supervisor: int) -> None:
    """Return when the fork server, given as a pidfd, has ended and the supervisor is this process's parent.

    If the supervisor has ended too, this process is killed.
    """
    end = select.poll()
    end.register(fork_server, select.POLLIN)
    end.poll()
    os.close(fork_server)
    die_with(supervisor)
