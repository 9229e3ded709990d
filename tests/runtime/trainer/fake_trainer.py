"""A whole trainer pod over FakeEngines, a script for `forks`.

`fake_trainer.py TERMINATION_LOG PORT RENDEZVOUS_PORT` is its process 1, with the environment of one.
"""

import asyncio
import functools
import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn


def supervise_with_fakes(termination_log: str, port: str, rendezvous_port: str) -> int:
    """The supervisor. Its fork server is forked here, before the supervisor starts threads, and waits to be
    told to begin."""
    from grpo_runtime.supervisor.supervisor import SupervisorOptions, supervise

    read, write = os.pipe()
    if (fork_server := os.fork()) == 0:
        os.close(write)
        run_fork_server(read)
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


def run_fork_server(orders: int) -> NoReturn:
    """Fork the ranks once told to; end if the supervisor has ended without."""
    from grpo_runtime.supervisor.fork_server import fork_ranks

    with os.fdopen(orders) as file:
        text = file.read()
    if not text:
        os._exit(1)
    order = json.loads(text)
    os.environ.clear()
    os.environ.update(order["environment"])
    run_dir = Path(order["run_dir"])
    fork_ranks(lambda: import_rank_with_fakes(run_dir), run_dir=run_dir)


def import_rank_with_fakes(run_dir: Path) -> Any:
    """A rank whose engines and strategy are those that its environment names."""
    from fake_engines import FakeEngines
    from sharded_strategy import ShardedStrategy
    from small_gpu import StandInForSmallGpu

    from grpo_runtime.trainer.rank import run_rank

    class SlowFakeEngines(FakeEngines):
        """From the step in FAKE_HANG_AT on, generation never ends; in that of FAKE_BREAK_AT it has a bug."""

        async def generate(self, requests, *, on_finished=None, stays_awake=False):  # type: ignore[no-untyped-def]
            if self._version.step >= int(os.environ.get("FAKE_HANG_AT", "1000000")):
                await asyncio.Event().wait()
            if self._version.step == int(os.environ.get("FAKE_BREAK_AT", "-1")):
                raise TypeError("unsupported")
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
    sys.exit(supervise_with_fakes(*sys.argv[1:]))
