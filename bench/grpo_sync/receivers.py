"""Starts receivers as processes, and carries verbs to them."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpo_bench.errors import BenchError
from grpo_runtime.weight_sync.interface import Info, WeightSyncError

_BENCH = Path(__file__).parents[1]
_MAX_LINE_BYTES = 16 * 1024 * 1024


class RemoteReceiver:
    """A receiver process, and the `ControlChannel` to it."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.load_seconds = 0.0
        """How long the last `finish` has copied into the model."""
        self._process = process
        self._reader = reader
        self._writer = writer

    async def init(self, info: Info) -> None:
        await self.call("init", info=dict(info))

    async def start(self) -> None:
        await self.call("start")

    async def update(self, info: Info) -> None:
        await self.call("update", info=dict(info))

    async def finish(self, version: str) -> None:
        self.load_seconds = (await self.call("finish"))["load_seconds"]

    async def shutdown(self) -> None:
        await self.call("shutdown")

    async def call(self, verb: str, **arguments: Any) -> Mapping[str, Any]:
        """Do a verb and return its result; see `answer`."""
        await self.ask(verb, **arguments)
        return await self.answer()

    async def ask(self, verb: str, **arguments: Any) -> None:
        """Ask for a verb without waiting for the answer."""
        self._writer.write(json.dumps({"verb": verb, "arguments": arguments}).encode() + b"\n")
        await self._writer.drain()

    async def answer(self) -> Mapping[str, Any]:
        """The next answer. Raises WeightSyncError when the verb failed, and BenchError when the process has
        ended."""
        line = await self._reader.readline()
        if not line:
            raise BenchError("a receiver process has ended")
        answer = json.loads(line)
        if answer["error"]:
            raise WeightSyncError(answer["error"])
        result: Mapping[str, Any] = answer["result"]
        return result

    def freeze(self) -> None:
        """Stop the process where it is."""
        self._process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        self._writer.close()


@asynccontextmanager
async def started_receivers(number: int) -> AsyncIterator[Sequence[RemoteReceiver]]:
    """Processes that have imported all they need; they end with the block."""
    receivers: list[RemoteReceiver] = []
    try:
        for _ in range(number):
            receivers.append(await _start())
        await asyncio.gather(*(receiver.call("shutdown") for receiver in receivers))
        yield receivers
    finally:
        for receiver in receivers:
            receiver.end()


async def _start() -> RemoteReceiver:
    ours, theirs = socket.socketpair()
    with theirs:
        process = _spawn(theirs)
    reader, writer = await asyncio.open_connection(sock=ours, limit=_MAX_LINE_BYTES)
    return RemoteReceiver(process, reader, writer)


def _spawn(connection: socket.socket) -> subprocess.Popen[bytes]:
    """Start a receiver at the other end of `connection`."""
    return subprocess.Popen(
        [sys.executable, "-m", "grpo_sync.receiver", str(connection.fileno()), str(os.getpid())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_BENCH), *sys.path]), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        pass_fds=[connection.fileno()],
        # Ctrl-C in a terminal reaches this process alone, which ends them
        start_new_session=True,
    )
