"""One of two ranks that meet, each with an engine that has finished so many samples.

`meeting_ranks.py PORT` prints what it knows after two meetings.
"""

import os
import sys

from grpo_runtime.trainer.distributed import Command, Ranks, StopRequest

FINISHED = (3, 40)


def main(rank: int, port: int) -> None:
    """Rank 0 announces two commands, rank 1 executes them."""
    ranks = Ranks.meet(
        rank=rank, world_size=2, address="127.0.0.1", port=port, backend="gloo", stop=StopRequest()
    )
    ranks.report_engine_state(num_finished=lambda: FINISHED[rank], is_starting_again=lambda: rank == 1)
    commands = (Command.SAVE, Command.DONE)
    for command in commands:
        if rank == 0:
            ranks.announce(command)
        else:
            assert ranks.next_command(on_tick=lambda: None) is command
    print(*ranks.num_finished, *ranks.is_starting_again, flush=True)
    ranks.leave()


if __name__ == "__main__":
    main(int(os.environ["RANK"]), int(sys.argv[1]))
