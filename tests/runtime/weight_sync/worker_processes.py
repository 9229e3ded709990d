"""Engines without vLLM whose workers are processes: they can be killed and hung, and there may be several.

The verbs travel as JSON over pipes. An engine does a verb once all of its workers have, as vLLM's do.
"""

import asyncio
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import pytest  # noqa: E402
import torch  # noqa: E402
from receiver_harness import CallChannel, Worker  # noqa: E402

from grpo_runtime.weight_sync.interface import WeightSyncError  # noqa: E402

_CONTEXT = multiprocessing.get_context("forkserver")
# every process is a copy of one that has imported this file, and torch with it
_CONTEXT.set_forkserver_preload([Path(__file__).stem])
_PYTHONPATH = os.pathsep.join([*sys.path[:2], *filter(None, [os.environ.get("PYTHONPATH")])])
_STARTING = threading.Lock()


Layout = Mapping[str, tuple[int, ...]]


def digest_of(weights: dict[str, torch.Tensor]) -> str:
    """A digest of all bits of some weights."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].contiguous().cpu()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class _Worker(Worker):
    """What runs in the process of a worker: one call after the other."""

    def served(self) -> list[str]:
        return [self.version, digest_of(self.weights)]


def _serve(  # noqa: PLR0917 - a process passes everything by position
    connection: Connection, backend: str, rank: int, size: int, layout: Layout | None, place: int
) -> None:
    torch.set_num_threads(1)
    worker = _Worker(backend, rank=rank, size=size, layout=layout, place=place)
    while True:
        try:
            verb, *arguments = json.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            answer = {"ok": getattr(worker, verb)(*arguments)}
        except WeightSyncError as error:
            if worker.has_ended:
                return
            answer = {"error": str(error)}
        connection.send_bytes(json.dumps(answer).encode())


class EngineOfProcesses(CallChannel):
    """The workers of one engine."""

    def __init__(
        self, backend: str, *, num_workers: int = 1, layout: Layout | None = None, first_place: int = 0
    ) -> None:
        """`first_place` as `device_of` has it."""
        self.on_sent: Callable[[str], object] = lambda verb: None
        """Called, in a thread, with each verb that a worker has been sent."""
        self._workers = []
        for rank in range(num_workers):
            here, there = _CONTEXT.Pipe()
            arguments = (there, backend, rank, num_workers, layout, first_place + rank)
            process = _CONTEXT.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self._workers.append((process, here, ThreadPoolExecutor(max_workers=1)))

    @property
    def num_workers(self) -> int:
        return len(self._workers)

    async def served(self) -> list[list[str]]:
        """Version and digest of what each worker would serve."""
        found: list[list[str]] = await self.call("served")
        return found

    def kill(self, *, worker: int = -1) -> None:
        """End a worker's process."""
        self._signal(signal.SIGKILL, worker=worker)

    def freeze(self, *, worker: int = -1) -> None:
        """Stop a worker's process where it is."""
        self._signal(signal.SIGSTOP, worker=worker)

    def thaw(self) -> None:
        """Let every worker go on."""
        for index in range(self.num_workers):
            self._signal(signal.SIGCONT, worker=index)

    def end(self) -> None:
        """End every process."""
        for process, connection, thread in self._workers:
            process.kill()
            process.join()
            thread.shutdown()
            connection.close()

    def _signal(self, number: int, *, worker: int) -> None:
        pid = self._workers[worker][0].pid
        assert pid is not None
        os.kill(pid, number)

    async def call(self, verb: str, *arguments: Any) -> list[Any]:
        request = json.dumps([verb, *arguments]).encode()
        loop = asyncio.get_running_loop()

        def ask(connection: Connection) -> Any:
            try:
                connection.send_bytes(request)
                self.on_sent(verb)
                return json.loads(connection.recv_bytes())
            except (EOFError, OSError):
                return {"error": "the worker is gone"}

        answers = await asyncio.gather(
            *(loop.run_in_executor(thread, ask, here) for _, here, thread in self._workers)
        )
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:
            raise WeightSyncError.told_in("; ".join(errors))
        return [answer["ok"] for answer in answers]


@asynccontextmanager
async def engines_of_processes(
    backend: str, names: str, *, num_workers: int = 1, layout: Layout | None = None
) -> AsyncIterator[dict[str, EngineOfProcesses]]:
    """Engines by name, one for each letter, once they answer; their processes end with the block. `layout` is
    that of their model, which otherwise is that of `some_weights`."""
    # for the fork server, which starts with the first; others may start engines in other threads
    with _STARTING, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", _PYTHONPATH)
        engines = {
            name: EngineOfProcesses(
                backend, num_workers=num_workers, layout=layout, first_place=index * num_workers
            )
            for index, name in enumerate(names)
        }
    try:
        await asyncio.gather(*(engine.served() for engine in engines.values()))
        yield engines
    finally:
        for engine in engines.values():
            engine.end()
