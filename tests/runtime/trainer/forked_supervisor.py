"""Process 1 of a trainer pod whose fork server is a fork of it: what ranks need has been imported already."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from grpo_runtime.supervisor.fork_server import RunRank, fork_ranks
from grpo_runtime.supervisor.supervisor import SupervisorOptions, supervise

ImportRank = Callable[[Path], RunRank]
"""From the folder of the run to what a rank does."""


def supervise_forked(
    termination_log: str, port: str, rendezvous_port: str, *, import_rank: ImportRank
) -> int:
    """The supervisor. Its fork server is forked here, before the supervisor starts threads, and waits to be
    told to begin."""
    read, write = os.pipe()
    if (fork_server := os.fork()) == 0:
        os.close(write)
        run_fork_server(read, import_rank)
    os.close(read)

    def begin(environment: Mapping[str, str], run_dir: Path) -> int:
        with os.fdopen(write, "w") as order:
            json.dump({"environment": dict(environment), "run_dir": str(run_dir)}, order)
        return fork_server

    options = SupervisorOptions(
        port=int(port),
        rendezvous_port=int(rendezvous_port),
        termination_log=Path(termination_log),
        start_fork_server=begin,
    )
    return supervise(os.environ, options=options)


def run_fork_server(orders: int, import_rank: ImportRank) -> NoReturn:
    """Fork the ranks once told to; end if the supervisor has ended without."""
    with os.fdopen(orders) as file:
        text = file.read()
    if not text:
        os._exit(1)
    order = json.loads(text)
    os.environ.clear()
    os.environ.update(order["environment"])
    run_dir = Path(order["run_dir"])
    fork_ranks(lambda: import_rank(run_dir), run_dir=run_dir)
