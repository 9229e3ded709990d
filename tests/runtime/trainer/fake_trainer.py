"""Whole trainer pods over FakeEngines, each a fork of one process that has imported everything.

`python fake_trainer.py` reads requests from stdin, a line of JSON each, and answers with a line: to the
environment, the arguments and the log of a pod with the process id of its supervisor, and to such an id with
the exit code of the pod once it has ended. Importing torch takes longer than most of these pods run.
"""

import asyncio
import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from early_imports import import_for_every_rank, import_for_zero

from grpo_api.contract.environment import Env

sys.path[:0] = [str(Path(__file__).parents[level]) for level in (0, 1)]


def serve() -> None:
    """Start the pods that stdin asks for until it ends."""
    from grpo_runtime.process.lasting_imports import lasting_imports

    with lasting_imports():
        # so that no pod has to
        import_rank_with_fakes(Path())
        import peft  # noqa: F401

        import grpo_runtime.supervisor.supervisor  # noqa: F401
    import_for_every_rank()
    for line in sys.stdin:
        request = json.loads(line)
        if "ended" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])
        else:
            answer = start_pod(request)
        print(answer, flush=True)


def start_pod(request: dict[str, Any]) -> int:
    """Fork one pod, and return its process id."""
    if "ZeRO" in Path(request["environment"][Env.RUN_CONFIG]).read_text():
        import_for_zero()
    if (pid := os.fork()) == 0:
        run_pod(request)
    return pid


def run_pod(request: dict[str, Any]) -> NoReturn:
    """One pod, in a session of its own, so that what a failed test leaves can be ended as a whole."""
    os.setsid()
    with Path(request["log"]).open("wb") as log, Path(os.devnull).open("rb") as nothing:
        for number, file in ((0, nothing), (1, log), (2, log)):
            os.dup2(file.fileno(), number)
    _take(request["environment"])
    os._exit(supervise_with_fakes(*request["arguments"]))


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
    _take(order["environment"])
    run_dir = Path(order["run_dir"])
    fork_ranks(lambda: import_rank_with_fakes(run_dir), run_dir=run_dir)


def import_rank_with_fakes(run_dir: Path) -> Any:
    """A rank whose engines and strategy are those that its environment names."""
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


def _take(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


if __name__ == "__main__":
    # as a pod's process 1 has it, whatever started the tests
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    serve()
