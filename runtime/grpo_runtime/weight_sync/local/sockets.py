"""The sockets between a trainer and the workers of an engine on its machine.

A socket has a name that only the kernel knows and that ends with it; a random key, which travels on the
authenticated control channel, opens it. Engines must be in the trainer's network namespace, which the
containers of a pod share.
"""

import secrets
import socket
import struct
import time
from hmac import compare_digest
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from grpo_runtime.weight_sync.interface import WeightSyncError

KEY_CHARACTERS = 32
NUMBER = struct.Struct("<q")
_KEY_SECONDS = 1.0
"""How long somebody who connected may take to send the key."""


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
    """A worker's end."""

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

    def require(self, key: str, *, stall_seconds: float) -> socket.socket:
        """The socket of the trainer with this key, which may say nothing for so long. Raises WeightSyncError
        when this worker did not come to it."""
        if self._socket is None or key != self._key:
            raise WeightSyncError("this engine is not connected to this sender: it must init first")
        self._socket.settimeout(stall_seconds)
        return self._socket

    def next_number(self) -> int:
        """The number that the trainer sends. Raises WeightSyncError when none comes in time."""
        assert self._socket is not None  # `require` came before
        try:
            return receive_number(self._socket)
        except OSError as error:
            raise self.lost(error) from error

    def send_number(self, number: int) -> None:
        """Send a number to the trainer. Raises WeightSyncError when it takes none."""
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
        """What to raise when the trainer is gone."""
        self.close()
        return WeightSyncError(f"the trainer stopped sending: {error or type(error).__name__}")


def receive_number(peer: socket.socket) -> int:
    """The number that the other end sends. Raises OSError when it closed its end, or sends none in time."""
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
    """Of an abstract socket, which has no file."""
    return f"\0{init.name}"
