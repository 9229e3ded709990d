"""Weights to engines on the same machine: they read the trainer's copy where it lies.

The trainer hands each worker the file of the copy over a Unix socket, and then a number for each buffer that
is full. The socket has a name that only the kernel knows and that ends with it; a random key, which travels
on the authenticated control channel, opens it. Engines must be in the trainer's network namespace, which the
containers of a pod share.
"""

import asyncio
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hmac import compare_digest
from io import FileIO
from typing import Annotated, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_runtime.weight_sync.host_copy import HostCopy
from grpo_runtime.weight_sync.interface import (
    GroupBrokenError,
    Info,
    Peer,
    SenderSettings,
    WeightSyncError,
)
from grpo_runtime.weight_sync.memory import MEMORY_TO_SHARE, Memory, map_memory
from grpo_runtime.weight_sync.source import WeightSource
from grpo_runtime.weight_sync.staging import update_info
from grpo_runtime.weight_sync.together import act_together, read_outcome

_NUMBER = struct.Struct("<q")
_KEY_CHARACTERS = 32
_KNOCK_SECONDS = 1.0
"""How long somebody who came to the socket may take to say the key."""
_T = TypeVar("_T")


def shared_copy(source: WeightSource) -> HostCopy:
    """A copy in memory that engines can be handed."""
    return HostCopy(source, pool=MEMORY_TO_SHARE)


class SharedMemoryInit(BaseModel):
    """What the verb `init` carries: the name of the trainer's socket, and the key to it."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, Field(min_length=16, max_length=100)]
    key: Annotated[str, Field(min_length=_KEY_CHARACTERS, max_length=_KEY_CHARACTERS, repr=False)]


class SharedMemoryConnection:
    """The trainer's end of the sockets to the workers of one engine; see `Connection`."""

    def __init__(self, peer: Peer, settings: SenderSettings) -> None:
        self.channel = peer.channel
        self._num_workers = peer.num_workers
        self._timeout_seconds = settings.timeout_seconds
        self._stall_seconds = settings.deadlines.stall_seconds()
        self._key = secrets.token_hex(_KEY_CHARACTERS // 2)
        self._workers: list[socket.socket] = []
        self._lent: HostCopy | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weight-sender")

    async def init(self) -> None:
        """Let every worker of the engine come to a socket."""
        info = SharedMemoryInit(name=f"grpo-weights-{secrets.token_hex(16)}", key=self._key)
        with _socket() as server:
            server.bind(_address(info))
            server.listen(self._num_workers)
            accepting = self._in_thread(lambda: self._accept(server))
            await self.channel.init(info.model_dump())
            self._workers = await accepting

    async def update(self, weights: HostCopy) -> None:
        """Hand over the copy while it is being made; the engine answers when it has checked everything."""
        if not self._workers:
            raise WeightSyncError("the engine is not connected: call init first")
        workers, stall = list(self._workers), self._stall_seconds
        first = partial(weights.wait_for_first_buffer, timeout_seconds=self._timeout_seconds)
        await asyncio.to_thread(first)
        announcing = self._in_thread(lambda: _announce(weights, workers, stall_seconds=stall))
        info = update_info(weights, connection=self._key, stall_seconds=stall)
        errors = await act_together({"engine": self.channel.update(info)}, announcing, stall_seconds=stall)
        for error in errors.values():
            raise error
        self._lent = weights

    async def finish(self, version: str) -> None:
        """Let the engine load the copy."""
        await self.channel.finish(version)
        self._lent = None

    async def shutdown(self) -> None:
        """Close the sockets; a worker that waits at one is told by that."""
        for worker in self._workers:
            worker.close()
        self._workers = []
        if self._lent is not None:
            # nobody has said that it no longer reads them
            self._lent.set_aside()
            self._lent = None
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _accept(self, server: socket.socket) -> list[socket.socket]:
        """The workers that came with the key. Who comes without it, or says nothing, is sent away."""
        workers: list[socket.socket] = []
        ends_at = time.monotonic() + self._stall_seconds
        try:
            while len(workers) < self._num_workers:
                server.settimeout(max(0.001, ends_at - time.monotonic()))
                worker, _ = server.accept()
                worker.settimeout(_KNOCK_SECONDS)
                if self._has_key(worker):
                    worker.settimeout(self._stall_seconds)
                    workers.append(worker)
                else:
                    worker.close()
        except OSError as error:
            for worker in workers:
                worker.close()
            raise WeightSyncError(
                f"{len(workers)} of {self._num_workers} workers came within {self._stall_seconds:g} s: are "
                "they in the trainer's network namespace?"
            ) from error
        return workers

    def _has_key(self, worker: socket.socket) -> bool:
        try:
            return compare_digest(worker.recv(_KEY_CHARACTERS), self._key.encode())
        except OSError:
            return False

    def _in_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        future.add_done_callback(read_outcome)
        return future


class SharedMemoryReceiver:
    """The end in one worker; see `ReceiverTransport`."""

    def __init__(self) -> None:
        self._trainer: socket.socket | None = None
        self._key = ""
        self._memory: Memory | None = None

    def init(self, info: Info) -> None:
        """Come to the socket of the trainer that wrote `info`."""
        self.shutdown()
        try:
            parsed = SharedMemoryInit.model_validate(dict(info))
        except ValidationError as error:
            raise WeightSyncError(f"shared memory init not understood: {error}") from error
        trainer = _socket()
        try:
            trainer.connect(_address(parsed))
        except OSError as error:
            trainer.close()
            raise WeightSyncError(
                f"the trainer is not on this machine, or in another pod: {error}"
            ) from error
        trainer.send(parsed.key.encode())
        self._trainer, self._key = trainer, parsed.key

    def memory(self, num_bytes: int, *, connection: str, stall_seconds: float) -> torch.Tensor:
        """The trainer's copy itself."""
        if self._trainer is None or connection != self._key:
            raise WeightSyncError("this engine is not connected to this sender: it must init first")
        self._trainer.settimeout(stall_seconds)
        try:
            _, files, _, _ = socket.recv_fds(self._trainer, _NUMBER.size, 1)
        except OSError as error:
            raise self._lost(error) from error
        if not files:
            raise self._lost(EOFError("it closed its socket"))
        os.set_inheritable(files[0], False)
        file = FileIO(files[0], "r+")
        if self._memory is not None and _is_same(self._memory, file, num_bytes=num_bytes):
            file.close()
            return self._memory.stream
        try:
            self._memory = map_memory(file, num_bytes=num_bytes)
        except ValueError as error:
            raise WeightSyncError(f"weight update refused: {error}") from error
        return self._memory.stream

    def receive(self, buffers: Sequence[torch.Tensor], *, stall_seconds: float) -> Iterator[torch.Tensor]:
        """Wait until the trainer has filled the buffers in order."""
        end = num_ready = 0
        for buffer in buffers:
            end += len(buffer)
            while num_ready < end:
                num_ready = self._next_number()
            yield buffer

    def shutdown(self) -> None:
        """Close the socket, and let go of the copy."""
        self._memory = None
        trainer, self._trainer = self._trainer, None
        if trainer is not None:
            trainer.close()

    def _next_number(self) -> int:
        assert self._trainer is not None
        try:
            data = self._trainer.recv(_NUMBER.size)
        except OSError as error:
            raise self._lost(error) from error
        if len(data) != _NUMBER.size:
            raise self._lost(EOFError("it closed its socket"))
        (number,) = _NUMBER.unpack(data)
        return int(number)

    def _lost(self, error: Exception) -> WeightSyncError:
        self.shutdown()
        return WeightSyncError(f"the trainer stopped sending: {error or type(error).__name__}")


def _announce(weights: HostCopy, workers: Sequence[socket.socket], *, stall_seconds: float) -> None:
    """Hand the workers the copy, then tell them of each buffer. Closes the sockets when that fails."""
    file = weights.memory.file
    if file is None:
        raise WeightSyncError("these weights are in memory that cannot be shared")
    try:
        for worker in workers:
            socket.send_fds(worker, [_NUMBER.pack(0)], [file.fileno()])
        end = 0
        for buffer in weights.buffers(stall_seconds=stall_seconds):
            end += len(buffer)
            for worker in workers:
                worker.send(_NUMBER.pack(end))
    except (OSError, WeightSyncError) as error:
        # so that no worker waits for what does not come
        for worker in workers:
            worker.close()
        if isinstance(error, OSError):
            raise GroupBrokenError(f"a worker of the engine is gone: {error}") from error
        raise


def _is_same(memory: Memory, file: FileIO, *, num_bytes: int) -> bool:
    """Whether this file is what is mapped already."""
    if memory.file is None or len(memory.stream) != num_bytes:
        return False
    known, found = os.fstat(memory.file.fileno()), os.fstat(file.fileno())
    return (known.st_dev, known.st_ino) == (found.st_dev, found.st_ino)


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _address(info: SharedMemoryInit) -> str:
    """Of an abstract socket, which has no file."""
    return f"\0{info.name}"
