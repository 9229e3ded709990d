"""Where the ranks of a pod come from: one process imports what they need, and each rank is a fork of it.

Torch, transformers and vLLM take seconds of a core and hundreds of megabytes to import; so a pod pays once
and not for each rank. The nursery ends as soon as the ranks are there: they become the supervisor's children,
for it adopts orphans, and it alone sees how they end. No torch here.
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
from grpo_runtime.lasting_imports import lasting_imports
from grpo_runtime.parent_death import die_with
from grpo_runtime.report.files import write_atomically
from grpo_runtime.trainer.failure import leave_failure

SUPERVISOR_PID = "SUPERVISOR_PID"
"""Tells the nursery and the ranks who started them: the kernel kills them when that process is killed,
wherever there is no pod to end with it."""
GANG_VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", SUPERVISOR_PID),
    }
)
"""What says where a process stands in its gang; nobody else's must be inherited."""

STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_PIDS_FILE = "ranks.json"

RunRank = Callable[[Mapping[str, str]], NoReturn]
"""What a rank does with its environment."""


def fork_ranks(import_rank: Callable[[], RunRank], *, run_dir: Path) -> NoReturn:
    """Import what ranks need, fork them, leave their process ids in `run_dir`, and end.

    This process's environment has the supervisor's process id and torchrun's names for the place of this pod:
    GROUP_RANK, its index, and LOCAL_WORLD_SIZE, how many ranks it has. No import may start a thread. A rank
    begins when this process has ended, and not at all when it was killed before it had left their ids. A
    signal to stop that arrives here after a fork reaches no rank: the supervisor sends it again to those it
    adopts. An error here is left in `run_dir` as that of rank 0.
    """
    nursery = os.getpid()
    try:
        _fork_ranks(import_rank, run_dir=run_dir)
    except BaseException as error:
        if os.getpid() != nursery:
            # a rank that did not come to be one
            traceback.print_exc()
            os._exit(1)
        os._exit(leave_failure(run_dir, error, local_rank=0))
    os._exit(0)


def find_ranks(run_dir: Path) -> Sequence[int]:
    """The process ids of the ranks by local rank; none when the nursery ended before they were there."""
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
    nursery = os.pidfd_open(os.getpid())
    pids = []
    for place in _places():
        if (pid := os.fork()) == 0:
            _wait_for_adoption(nursery, supervisor=supervisor)
            if os.getpid() not in find_ranks(run_dir):
                # the nursery was killed: nobody knows of this process
                os._exit(1)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            os.environ.update(place)
            run_rank(os.environ)
        pids.append(pid)
    write_atomically(run_dir / _PIDS_FILE, json.dumps(pids))


def _places() -> list[dict[str, str]]:
    num_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    first = int(os.environ["GROUP_RANK"]) * num_ranks
    return [
        {"RANK": str(first + local_rank), "LOCAL_RANK": str(local_rank)} for local_rank in range(num_ranks)
    ]


def _wait_for_adoption(nursery: int, *, supervisor: int) -> None:
    """Return when the process behind the handle `nursery` has ended and the supervisor is the parent; a rank
    whose supervisor has ended too is killed."""
    end = select.poll()
    end.register(nursery, select.POLLIN)
    end.poll()
    os.close(nursery)
    die_with(supervisor)
