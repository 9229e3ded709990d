"""Attempts of a job as forks of one process, over an engine that is a fake and kills at scripted points.

`python scripted_attempts.py` reads one attempt a line from stdin and answers with the exit codes of its
ranks. Importing torch takes longer than such an attempt.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from early_imports import import_for_every_rank, import_for_zero

sys.path[:0] = [str(Path(__file__).parents[level]) for level in (0, 1)]


def serve() -> None:
    """Run the attempts that stdin names until it ends."""
    from grpo_runtime.process.lasting_imports import lasting_imports

    with lasting_imports():
        # so that no fork has to
        import scripted_rank  # noqa: F401
    import_for_every_rank()
    for line in sys.stdin:
        attempt = json.loads(line)
        if attempt["is_zero"]:
            import_for_zero()
        print(json.dumps(run_attempt(attempt)), flush=True)


def run_attempt(attempt: dict[str, Any]) -> list[int]:
    """The exit codes by rank, -9 for one that was killed. With the first that ends badly all others are
    killed, as the supervisor does it."""
    server, ranks = os.getpid(), {}
    for rank in range(attempt["num_ranks"]):
        pid = os.fork()
        if pid == 0:
            run_one(attempt, rank=rank, server=server)
        ranks[pid] = rank
    codes: dict[int, int] = {}
    while len(codes) < len(ranks):
        pid, status = os.wait()
        if pid not in ranks:
            continue
        codes[ranks[pid]] = code = os.waitstatus_to_exitcode(status)
        for other, rank in ranks.items():
            if code != 0 and rank not in codes:
                os.kill(other, signal.SIGKILL)
    return [codes[rank] for rank in sorted(codes)]


def run_one(attempt: dict[str, Any], *, rank: int, server: int) -> NoReturn:
    """One rank, in a process of its own."""
    from scripted_rank import run_scripted

    from grpo_runtime.process.parent_death import die_with

    die_with(server)
    with Path(attempt["log"]).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(attempt["environment"] | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    run_scripted(Path(attempt["run_dir"]), rank=rank)


if __name__ == "__main__":
    serve()
