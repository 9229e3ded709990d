"""The process of an engine beside its rank: executes the rank's calls until the rank ends.

It is started as `python -m grpo_runtime.colocated.engine_child PIPE PARENT`: the file descriptor of its end
of the pipe, and the process id of the rank, with which it ends.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, Protocol

from grpo_api.contract.run_config import parse_run_config
from grpo_runtime.colocated.child_messages import (
    decode_request,
    encode_error,
    encode_finished,
)
from grpo_runtime.colocated.json_pipe import Message, receive, send
from grpo_runtime.colocated.rank_engine import Completion, LocalEngine
from grpo_runtime.process.lasting_imports import lasting_imports
from grpo_runtime.process.parent_death import die_with
from grpo_runtime.rollout.interface import GenerateRequest

BEAT_SECONDS = 1.0
"""How often the rank is told how many steps the engine has taken."""


class EngineOfChild(LocalEngine, Protocol):
    """A LocalEngine that gives each completion as soon as it is finished."""

    @property
    def num_steps(self) -> int:
        """Steps it has taken since it was made. May be called in another thread."""
        ...

    def sample_each(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, Completion]]:
        """One completion for each request, with the index of its request, as they are finished."""
        ...


MakeEngine = Callable[[Message], EngineOfChild]
"""From what the rank starts it with to the engine."""


def main(arguments: Sequence[str], *, make_engine: MakeEngine) -> NoReturn:
    """Serve the rank, and end the process as it stands: vLLM's own end may hang."""
    descriptor, rank_pid = map(int, arguments)
    die_with(rank_pid)
    # Ctrl-C in a terminal reaches every process; the rank decides when its engine ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine %(levelname)s %(name)s: %(message)s")
    code = serve(Connection(descriptor), make_engine=make_engine)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(connection: Connection, *, make_engine: MakeEngine) -> int:
    """Make the engine and execute calls until the rank closes its end; returns the exit code. An engine that
    cannot be made ends it too."""
    child = _Child(connection)
    try:
        child.start(make_engine(receive(connection)))
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
        self._answer(None)
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def execute(self, message: Message) -> None:
        """Answer one call. An error is an answer too: whether to go on is for the rank to say."""
        try:
            answer = self._call(message["call"], message["arguments"])
        except Exception as error:
            traceback.print_exc()
            self.tell(encode_error(error))
        else:
            self._answer(answer)

    def tell(self, message: Message) -> None:
        """Write to the rank. Raises OSError when it has ended."""
        with self._lock:
            send(self._connection, message)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        assert self._engine is not None
        if name == "sample":
            requests = [decode_request(request) for request in arguments["requests"]]
            for index, completion in self._engine.sample_each(requests):
                self.tell(encode_finished(index, completion))
            return None
        engine, channel = self._engine, self._engine.channel
        verbs: Mapping[str, Callable[..., Coroutine[Any, Any, None]]] = {
            "init": channel.init,
            "start": channel.start,
            "update": channel.update,
            "finish": channel.finish,
            "shutdown": channel.shutdown,
        }
        if name in verbs:
            return asyncio.run(verbs[name](**arguments))
        calls: Mapping[str, Callable[..., Any]] = {
            "sleep": engine.sleep,
            "wake_up": engine.wake_up,
            "reset_prefix_cache": engine.reset_prefix_cache,
            "probe_logprobs": engine.probe_logprobs,
        }
        return calls[name](**arguments)

    def _answer(self, answer: Any) -> None:
        assert self._engine is not None
        self.tell({"answer": answer, "weight_version": self._engine.weight_version()})

    def _beat(self) -> None:
        assert self._engine is not None
        stopped = threading.Event()
        while not stopped.wait(BEAT_SECONDS):
            try:
                self.tell({"num_steps": self._engine.num_steps})
            except OSError:
                # the rank has closed its end: the main thread sees that too
                return


def make_vllm_engine(message: Message) -> EngineOfChild:
    """vLLM, for the RunConfig and the model's folder that the rank names.

    Raises UserError naming the argument when vLLM refuses the configuration.
    """
    with lasting_imports():
        from grpo_runtime.colocated.vllm_engine import VllmEngine
        from grpo_runtime.torch_threads import num_engine_threads, settle_num_threads

    run_config = parse_run_config(message["run_config"])
    settle_num_threads(num_engine_threads(run_config))
    return VllmEngine(run_config, model_dir=Path(message["model_dir"]))


if __name__ == "__main__":
    main(sys.argv[1:], make_engine=make_vllm_engine)
