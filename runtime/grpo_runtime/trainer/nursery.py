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

from grpo_runtime.lasting_imports import lasting_imports
from grpo_runtime.parent_death import die_with
from grpo_runtime.report.files import write_atomically

SUPERVISOR_PID = "SUPERVISOR_PID"
"""Tells the nursery and the ranks who started them: the kernel kills them when that process is killed,
wherever there is no pod to end with it."""

STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_RANKS = "ranks.json"

Become = Callable[[Mapping[str, str]], NoReturn]
"""What a rank does with its environment."""


def raise_ranks(environment: Mapping[str, str], *, run_dir: Path, learn: Callable[[], Become]) -> NoReturn:
    """Import what ranks need by `learn`, fork them, leave their process ids in `run_dir`, and end.

    `environment` has torchrun's names for this pod's place: GROUP_RANK, the index of the pod, and
    LOCAL_WORLD_SIZE, how many ranks it has. No import may start a thread. A rank begins when this process has
    ended, and not at all when it was killed before it had left their ids. A signal to stop that arrives here
    after the forks reaches no rank: the supervisor sends it again to those it adopts.
    """
    supervisor = int(environment[SUPERVISOR_PID])
    die_with(supervisor)
    with lasting_imports():
        become = learn()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    sys.stdout.flush()
    sys.stderr.flush()
    nursery = os.pidfd_open(os.getpid())
    pids = []
    for place in _places(environment):
        if (pid := os.fork()) == 0:
            try:
                _leave(nursery, supervisor=supervisor, run_dir=run_dir)
                os.environ.update(place)
                become(os.environ)
            except BaseException:
                # above this frame lies the nursery's own stack
                traceback.print_exc()
            finally:
                os._exit(1)
        pids.append(pid)
    write_atomically(run_dir / _RANKS, json.dumps(pids))
    os._exit(0)


def find_ranks(run_dir: Path) -> Sequence[int]:
    """The process ids of the ranks by local rank; none when the nursery ended before they were there."""
    path = run_dir / _RANKS
    return [int(pid) for pid in json.loads(path.read_text())] if path.exists() else []


def _places(environment: Mapping[str, str]) -> list[dict[str, str]]:
    num_ranks = int(environment["LOCAL_WORLD_SIZE"])
    first = int(environment["GROUP_RANK"]) * num_ranks
    return [
        {"RANK": str(first + local_rank), "LOCAL_RANK": str(local_rank)} for local_rank in range(num_ranks)
    ]


def _leave(nursery: int, *, supervisor: int, run_dir: Path) -> None:
    """Wait until the supervisor is this process's parent; `nursery` is a handle on the one it is now."""
    end = select.poll()
    end.register(nursery, select.POLLIN)
    end.poll()
    os.close(nursery)
    die_with(supervisor)
    if os.getpid() not in find_ranks(run_dir):
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
