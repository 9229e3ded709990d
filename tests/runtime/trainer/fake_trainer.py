"""A whole trainer pod as a process, with FakeEngines in place of rollout pods.

`python fake_trainer.py TERMINATION_LOG PORT RENDEZVOUS_PORT` is the supervisor; with `ranks` it forks them.
"""

import argparse
import asyncio
import functools
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from grpo_runtime.supervisor.fork_server import RunRank


def supervise_with_fakes(arguments: Sequence[str]) -> int:
    from grpo_runtime.supervisor.supervisor import SupervisorOptions, supervise

    log, port, rendezvous_port = arguments
    options = SupervisorOptions(
        port=int(port),
        rendezvous_port=int(rendezvous_port),
        termination_log=Path(log),
        ranks_command=(sys.executable, __file__, "ranks"),
    )
    return supervise(os.environ, options=options)


def ranks_with_fakes(arguments: Sequence[str]) -> NoReturn:
    from grpo_runtime.supervisor.fork_server import fork_ranks

    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path)
    run_dir = parser.parse_args(arguments).run_dir
    fork_ranks(lambda: import_rank_with_fakes(run_dir), run_dir=run_dir)


def import_rank_with_fakes(run_dir: Path) -> RunRank:
    sys.path[:0] = [str(Path(__file__).parents[level]) for level in (0, 1)]
    from fake_engines import FakeEngines
    from sharded_strategy import ShardedStrategy
    from small_gpu import StandInForSmallGpu

    from grpo_runtime.trainer.rank import run_rank

    class SlowFakeEngines(FakeEngines):
        """From the step in FAKE_HANG_AT on, generation never ends."""

        async def generate(self, requests, *, on_finished=None):  # type: ignore[no-untyped-def]
            if self._version.step >= int(os.environ.get("FAKE_HANG_AT", "1000000")):
                await asyncio.Event().wait()
            return await super().generate(requests, on_finished=on_finished)

        def __del__(self) -> None:
            # as the destructor of a gloo group may do
            threading.Event().wait()

    strategies = {"sharded": ShardedStrategy, "small GPU": StandInForSmallGpu}
    return functools.partial(
        run_rank,
        run_dir=run_dir,
        connect=SlowFakeEngines,
        make_strategy=strategies.get(os.environ.get("FAKE_STRATEGY", "")),
    )


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    sys.exit(ranks_with_fakes(rest) if role == "ranks" else supervise_with_fakes([role, *rest]))
