"""A connection between the trainer and the workers of one engine on its machine, whichever transport the
bytes take: `LocalConnection` is the trainer's side, `TrainerSocket` that of a worker.

The trainer listens on an abstract Unix socket; a random key, which travels on the authenticated control
channel, admits a worker. Engines must be in the trainer's network namespace, which the
containers of a pod share.
"""

import asyncio
import logging
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hmac import compare_digest
from typing import Annotated, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from grpo_runtime.weight_sync.interface import GroupBrokenError, Info, Peer, SenderSettings, WeightSyncError
from grpo_runtime.weight_sync.sender import act_together, read_outcome
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

log = logging.getLogger(__name__)
_T = TypeVar("_T")
KEY_CHARACTERS = 32
NUMBER = struct.Struct("<q")
_KEY_SECONDS = 1.0
"""How long somebody who connected may take to send the key."""


class LocalTransport(Protocol):
    """How the bytes come to the workers of one engine. Blocking, one call after the other."""

    def open(self) -> Info:
        """Get ready; returns what the verb `init` sends the workers besides the socket."""
        ...

    def deliver(self, weights: HostCopy, workers: Sequence[socket.socket], *, stall_seconds: float) -> None:
        """Let the workers have every buffer, in order. Raises OSError for a worker that is gone or makes no
        progress for `stall_seconds`."""
        ...

    def finished(self) -> None:
        """The engine has loaded what was delivered."""
        ...

    def close(self) -> None:
        """Release everything; some worker may still read it."""
        ...


class LocalConnection:
    """Sockets to the workers of one engine, and a transport for the bytes; see `Connection`."""

    def __init__(self, peer: Peer, settings: SenderSettings, *, transport: LocalTransport) -> None:
        self.channel = peer.channel
        self._num_workers = peer.num_workers
        self._transport = transport
        self._deadlines = settings.deadlines
        self._key = secrets.token_hex(KEY_CHARACTERS // 2)
        self._workers: list[socket.socket] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weight-sender")

    async def init(self) -> None:
        """Let every worker of the engine connect."""
        details = await self._in_thread(self._transport.open)
        with WorkerListener(num_workers=self._num_workers, key=self._key) as listener:
            stall = self._deadlines.stall_seconds()
            accepting = self._in_thread(partial(listener.accept, stall_seconds=stall))
            await self.channel.init({**listener.init.model_dump(), **details})
            self._workers = await accepting

    async def update(self, weights: HostCopy) -> None:
        """Hand over the copy while it is being made; the engine answers when it has checked everything."""
        if not self._workers:
            raise WeightSyncError("the engine is not connected: call init first")
        first = partial(weights.wait_for_first_buffer, timeout_seconds=self._deadlines.timeout_seconds)
        await asyncio.to_thread(first)
        stall, start = self._deadlines.stall_seconds(), time.monotonic()
        for worker in self._workers:
            worker.settimeout(stall)
        delivering = self._in_thread(
            partial(self._deliver, weights, list(self._workers), stall_seconds=stall)
        )
        info = weights.update_info(connection=self._key, stall_seconds=stall)
        errors = await act_together({"engine": self.channel.update(info)}, delivering, stall_seconds=stall)
        for error in errors.values():
            raise error
        self._deadlines.note("transfer", time.monotonic() - start)

    async def finish(self, version: str) -> None:
        """Let the engine load what it has."""
        await self.channel.finish(version)
        self._transport.finished()

    async def shutdown(self) -> None:
        """Close the sockets; a worker that waits at one is woken by it."""
        for worker in self._workers:
            worker.close()
        self._workers = []
        # queued behind the delivery, which fails once the sockets close
        self._thread.submit(self._close_transport)
        self._thread.shutdown(wait=False)

    def _deliver(self, weights: HostCopy, workers: Sequence[socket.socket], *, stall_seconds: float) -> None:
        try:
            self._transport.deliver(weights, workers, stall_seconds=stall_seconds)
        except (OSError, WeightSyncError) as error:
            # so that no worker waits for what does not come
            for worker in workers:
                worker.close()
            if isinstance(error, OSError):
                raise GroupBrokenError(f"a worker of the engine is gone: {error}") from error
            raise

    def _close_transport(self) -> None:
        try:
            self._transport.close()
        except Exception:
            log.exception("the transport could not be closed")

    def _in_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        future.add_done_callback(read_outcome)
        return future


class SocketInit(BaseModel):
    """What the verb `init` carries: the name of the trainer's socket, and the key to it."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, Field(min_length=16, max_length=100)]
    key: Annotated[str, Field(min_length=KEY_CHARACTERS, max_length=KEY_CHARACTERS, repr=False)]


class WorkerListener:
    """Listens for the workers of one engine; a context that closes it again."""

    def __init__(self, *, num_workers: int, key: str) -> None:
        self.init = SocketInit(name=f"grpo-weights-{secrets.token_hex(16)}", key=key)
        self._num_workers = num_workers
        self._socket = _socket()
        self._socket.bind(_address(self.init))
        self._socket.listen(num_workers)

    def __enter__(self) -> "WorkerListener":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def accept(self, *, stall_seconds: float) -> list[socket.socket]:
        """The workers that sent the key. A connection that sends another, or nothing, is closed.

        Raises WeightSyncError when not all come in time.
        """
        workers: list[socket.socket] = []
        ends_at = time.monotonic() + stall_seconds
        try:
            while len(workers) < self._num_workers:
                self._socket.settimeout(max(0.001, ends_at - time.monotonic()))
                worker, _ = self._socket.accept()
                worker.settimeout(_KEY_SECONDS)
                if _has_key(worker, self.init.key):
                    worker.settimeout(stall_seconds)
                    workers.append(worker)
                else:
                    worker.close()
        except OSError as error:
            for worker in workers:
                worker.close()
            raise WeightSyncError(
                f"{len(workers)} of {self._num_workers} workers came within {stall_seconds:g} s: are "
                "they in the trainer's network namespace?"
            ) from error
        return workers


class TrainerSocket:
    """A worker's side of the connection."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._key = ""

    def connect(self, init: SocketInit) -> None:
        """Connect to the trainer that wrote `init`, closing any other connection. Raises WeightSyncError."""
        self.close()
        trainer = _socket()
        try:
            trainer.connect(_address(init))
            trainer.send(init.key.encode())
        except OSError as error:
            trainer.close()
            raise WeightSyncError(
                f"the trainer is not on this machine, or in another pod: {error}"
            ) from error
        self._socket, self._key = trainer, init.key

    def socket_for(self, key: str, *, stall_seconds: float) -> socket.socket:
        """The socket of the trainer with this key, which may be silent for `stall_seconds`. Raises
        WeightSyncError when this worker is not connected to it."""
        if self._socket is None or key != self._key:
            raise WeightSyncError("this engine is not connected to this sender: it must init first")
        self._socket.settimeout(stall_seconds)
        return self._socket

    def next_number(self) -> int:
        """The next number from the trainer: with shared memory the bytes of the stream that are ready, with
        IPC the buffer that is ready, counted from 1. Raises WeightSyncError when none comes in time."""
        assert self._socket is not None  # `socket_for` came before
        try:
            return receive_number(self._socket)
        except OSError as error:
            raise self.lost(error) from error

    def send_number(self, number: int) -> None:
        """Send the trainer the number of a buffer that has been read. Raises WeightSyncError when it does not
        take it."""
        assert self._socket is not None
        try:
            self._socket.send(NUMBER.pack(number))
        except OSError as error:
            raise self.lost(error) from error

    def close(self) -> None:
        """Close the socket. Harmless when there is none."""
        trainer, self._socket = self._socket, None
        if trainer is not None:
            trainer.close()

    def lost(self, error: Exception) -> WeightSyncError:
        """The error to raise when the trainer is gone."""
        self.close()
        return WeightSyncError(f"the trainer stopped sending: {error or type(error).__name__}")


def receive_number(peer: socket.socket) -> int:
    """The number that the other side sends. Raises OSError when it closed its socket, or sends none in
    time."""
    data = peer.recv(NUMBER.size)
    if len(data) != NUMBER.size:
        raise ConnectionResetError("it closed its socket")
    (number,) = NUMBER.unpack(data)
    return int(number)


def _has_key(worker: socket.socket, key: str) -> bool:
    try:
        return compare_digest(worker.recv(KEY_CHARACTERS), key.encode())
    except OSError:
        return False


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _address(init: SocketInit) -> str:
    """Address of an abstract socket, which has no file."""
    return f"\0{init.name}"
