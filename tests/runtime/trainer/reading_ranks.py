"""One of two ranks, of which the first reads for longer than one collective operation may take.

`reading_ranks.py PORT FOLDER` prints what it has got. With `stop` behind it, rank 1 is asked to stop
meanwhile, and each prints that it stops.
"""

import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch

from grpo_runtime.report.progress import read_progress
from grpo_runtime.trainer.checkpoint.reading import ReadingRank
from grpo_runtime.trainer.distributed import Ranks, StopRequest, StopRequestedError

TIMEOUT = timedelta(seconds=3)
NUM_REPORTS = 5
"""How many the work waits for. They come a second or more apart."""


def main(rank: int, port: int, folder: Path, *, is_stopped: bool) -> None:
    """Read on rank 0, and tell what each rank has."""
    stop = StopRequest()
    ranks = Ranks.meet(
        rank=rank,
        world_size=2,
        address="127.0.0.1",
        port=port,
        backend="gloo",
        stop=stop,
        timeout=TIMEOUT,
    )
    reader = ReadingRank(ranks, run_dir=folder)
    stop.is_set = is_stopped and rank == 1

    def work() -> str:
        if is_stopped:
            threading.Event().wait()
        for _ in range(NUM_REPORTS):
            before = heartbeat(folder)
            reader.reading.add(1)
            while heartbeat(folder) == before:
                time.sleep(0.02)
        return "what was read"

    try:
        found = reader.read(work, what="loading a checkpoint")
    except StopRequestedError:
        print("stops", flush=True)
        os._exit(0)
    number = int(ranks.broadcast(torch.tensor(7 if rank == 0 else 0)))
    print(found, number, flush=True)
    ranks.leave()


def heartbeat(folder: Path) -> int:
    progress = read_progress(folder)
    assert progress is not None
    return progress.heartbeat


if __name__ == "__main__":
    main(int(os.environ["RANK"]), int(sys.argv[1]), Path(sys.argv[2]), is_stopped="stop" in sys.argv)
