"""The process of an engine beside its rank: executes the rank's calls until the rank ends.

A child of the rank is started as `python -m grpo_runtime.engines.colocated.engine_child PIPE PARENT`: the
file descriptor of its end of the pipe, and the process id of the rank, with which it ends. An actor of Ray
(`ray.actor`) does the same in a process that Ray has started.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, Protocol

from grpo_api.contract.run_config import parse_run_config
from grpo_runtime.engines.colocated.child_messages import Message, encode_error, receive, send
from grpo_runtime.engines.colocated.rank_engine import LocalEngine
from grpo_runtime.engines.interface import EngineKind
from grpo_runtime.engines.registry import engine_kind
from grpo_runtime.process.lasting_imports import lasting_imports
from grpo_runtime.process.lifetime import die_with
from grpo_runtime.rollouts.frames import Frame
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout
from grpo_runtime.rollouts.wire import completion_frame, logprobs_frame, read_request

BEAT_SECONDS = 1.0
"""How often the child reports to the rank how many steps the engine has taken."""


class EngineOfChild(LocalEngine, Protocol):
    """A LocalEngine that gives each completion as soon as it is finished."""

    @property
    def num_steps(self) -> int:
        """Steps it has taken since it was made. May be called in another thread."""
        ...

    def sample_each(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, Rollout]]:
        """One completion for each request, with the index of its request, as they are finished."""
        ...


MakeEngine = Callable[[Mapping[str, Any]], EngineOfChild]
"""Makes the engine from what the rank starts the child with."""


def main(arguments: Sequence[str], *, make_engine: MakeEngine) -> NoReturn:
    """Serve the rank as its child, and end with it."""
    descriptor, rank_pid = map(int, arguments)
    die_with(rank_pid)
    # Ctrl-C in a terminal reaches every process; the rank decides when its engine ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve_to_the_end(Connection(descriptor), make_engine=make_engine)


def serve_to_the_end(connection: Connection, *, make_engine: MakeEngine) -> NoReturn:
    """Serve the rank, and end the process as it stands: the engine's own end may hang."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s engine %(levelname)s %(name)s: %(message)s", force=True
    )
    code = serve(connection, make_engine=make_engine)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(connection: Connection, *, make_engine: MakeEngine) -> int:
    """Make the engine and execute calls until the rank closes its end; returns the exit code. An engine that
    cannot be made ends it too."""
    child = _Child(connection)
    try:
        child.start(make_engine(receive(connection).header))
    except Exception as error:
        traceback.print_exc()
        child.tell(encode_error(error))
        return 1
    while True:
        try:
            message = receive(connection)
        except (EOFError, OSError):
            return 0
        child.execute(message)


class _Child:
    """The engine, and the pipe to the rank, into which two threads write."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._engine: EngineOfChild | None = None

    def start(self, engine: EngineOfChild) -> None:
        """Say that the engine is there, and from now on how many steps it has taken."""
        self._engine = engine
        self.tell({})
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def execute(self, message: Message) -> None:
        """Answer one call. An error is an answer too: whether to continue is for the rank to say."""
        try:
            frames = self._call(message)
        except Exception as error:
            traceback.print_exc()
            self.tell(encode_error(error))
        else:
            self.tell({}, frames)

    def tell(self, header: Mapping[str, Any], frames: Iterable[Frame] = ()) -> None:
        """Write to the rank. Raises OSError when it has ended."""
        with self._lock:
            send(self._connection, header, frames)

    def _call(self, message: Message) -> list[Frame]:
        assert self._engine is not None
        name, arguments = message.header["call"], message.header["arguments"]
        if name == "sample":
            for index, rollout in self._engine.sample_each(list(map(read_request, message.frames))):
                self.tell({"finished": index}, [completion_frame(rollout)])
            return []
        if name == "probe_logprobs":
            return [logprobs_frame(self._engine.probe_logprobs(**arguments))]
        engine, channel = self._engine, self._engine.channel
        verbs: Mapping[str, Callable[..., Coroutine[Any, Any, None]]] = {
            "init": channel.init,
            "start": channel.start,
            "update": channel.update,
            "finish": channel.finish,
            "shutdown": channel.shutdown,
        }
        if name in verbs:
            asyncio.run(verbs[name](**arguments))
            return []
        calls: Mapping[str, Callable[..., Any]] = {
            "sleep": engine.sleep,
            "wake_up": engine.wake_up,
            "reset_prefix_cache": engine.reset_prefix_cache,
        }
        calls[name](**arguments)
        return []

    def _beat(self) -> None:
        assert self._engine is not None
        stopped = threading.Event()
        while not stopped.wait(BEAT_SECONDS):
            try:
                self.tell({"num_steps": self._engine.num_steps})
            except OSError:
                # the rank has closed its end: the main thread sees that too
                return


def make_engine_of(kind: EngineKind, given: Mapping[str, Any]) -> EngineOfChild:
    """An engine of that kind, for the RunConfig and the model's folder that the rank names, and as the engine
    of that name. Raises as `EngineKind.make_colocated` does."""
    with lasting_imports():
        kind.import_colocated()
        from grpo_runtime.torch_threads import num_engine_threads, pin_num_threads

    run_config = parse_run_config(given["run_config"])
    pin_num_threads(num_engine_threads(run_config))
    return kind.make_colocated(run_config, model_dir=Path(given["model_dir"]), name=given["name"])


if __name__ == "__main__":
    main(sys.argv[1:], make_engine=partial(make_engine_of, engine_kind()))
