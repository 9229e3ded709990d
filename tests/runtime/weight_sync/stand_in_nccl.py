"""Stand-ins on the CPU for a GPU and for NCCL, which run the code that is made for those.

The group has NCCL's manners: it is made without waiting for the others, who need the id that its rank 0
makes, its broadcasts go on beside the caller, nothing in it has a deadline, and only an abort ends what
blocks, after which it looks done.
"""

import itertools
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

from grpo_runtime.weight_sync.group import UNIQUE_ID_BYTES, GroupMember
from grpo_runtime.weight_sync.stream.memory import MEMORY_TO_SHARE, PRIVATE_MEMORY, private_memory

_num_staged = itertools.count()


class StandInEvent:
    """Is over at once: the copies of a stand-in are."""

    def synchronize(self) -> None:
        return


class StandInDevice:
    """Memory of this process that counts as a GPU's. What is staged goes to it and to the host in turn, or
    as `has_room` says."""

    host_pool = PRIVATE_MEMORY
    pool_to_share = MEMORY_TO_SHARE
    has_room: bool | None = None

    def __init__(self, *_: object) -> None:
        self._of_device: set[int] = set()
        self._is_in_use = threading.local()

    @contextmanager
    def use(self) -> Iterator[None]:
        before = getattr(self._is_in_use, "now", False)
        self._is_in_use.now = True
        try:
            yield
        finally:
            self._is_in_use.now = before

    def empty(self, num_bytes: int) -> torch.Tensor:
        # with any contents
        memory = torch.full((num_bytes,), 0xA5, dtype=torch.uint8)
        self._of_device.add(memory.untyped_storage().data_ptr())
        return memory

    def staging_memory(self, num_bytes: int) -> torch.Tensor:
        is_free = self.has_room
        if is_free is None:
            is_free = (os.getpid() + next(_num_staged)) % 2 == 0
        return self.empty(num_bytes) if is_free else private_memory(num_bytes).stream

    def needed_on_host(self, num_bytes: int) -> int:
        return 0 if self.has_room else num_bytes

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._of_device

    def copy_to_host(self, target: torch.Tensor, source: torch.Tensor) -> StandInEvent:
        self.require_use()
        target.copy_(source)
        return StandInEvent()

    def synchronize(self) -> None:
        self.require_use()

    def require_use(self) -> None:
        """A thread that has not chosen its GPU works on the first one."""
        assert getattr(self._is_in_use, "now", False), "this thread has not chosen its device"


class StandInWork:
    """A broadcast of a stand-in."""

    def __init__(self, future: "Future[None]", is_aborted: threading.Event) -> None:
        self._future = future
        self._is_aborted = is_aborted

    def wait(self) -> None:
        try:
            self._future.result()
        except (OSError, CancelledError):
            # as NCCL's: an aborted one looks done
            if not self._is_aborted.is_set():
                # nor does anything else end before its watchdog
                self._is_aborted.wait()


class StandInNccl:
    """Over TCP sockets of rank 0 to all others; see `LibraryGroup`."""

    def __init__(self, member: GroupMember, *, device: StandInDevice) -> None:
        self._member = member
        self._device = device
        self._peers: list[socket.socket] = []
        self._sockets: list[socket.socket] = []
        self._is_aborted = threading.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stand-in-nccl")
        self._id: Future[bytes] = Future()

    def unique_id(self) -> bytes | None:
        try:
            return self._id.result(timeout=0.1)
        except TimeoutError:
            return None

    def meet(self) -> None:
        self._device.require_use()
        if self._member.rank == 0:
            self._server = socket.create_server(("127.0.0.1", 0))
            self._sockets.append(self._server)
            self._id.set_result(id_of_port(self._server.getsockname()[1], salt=secrets.token_hex(8)))
        StandInWork(self._thread.submit(self._connect), self._is_aborted).wait()

    def broadcast(self, buffer: torch.Tensor) -> StandInWork:
        self._device.require_use()
        assert self._device.holds(buffer), "NCCL sends what is on the GPU only"
        return StandInWork(self._thread.submit(self._broadcast, buffer), self._is_aborted)

    def abort(self) -> None:
        self._is_aborted.set()
        for one in list(self._sockets):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the other end was first
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _connect(self) -> None:
        if self._member.rank == 0:
            with self._server as server:
                for _ in range(1, self._member.size):
                    self._peers.append(server.accept()[0])
                    self._sockets.append(self._peers[-1])
        else:
            self._peers.append(socket.create_connection(("127.0.0.1", port_of(self._member.nccl_id))))
            self._sockets.append(self._peers[-1])
        if self._is_aborted.is_set():
            self.abort()

    def _broadcast(self, buffer: torch.Tensor) -> None:
        memory = buffer.numpy().data
        if self._member.rank == 0:
            for peer in self._peers:
                peer.sendall(memory)
            return
        num_received = 0
        while num_received < len(memory):
            received = self._peers[0].recv_into(memory[num_received:])
            if received == 0:
                raise ConnectionResetError("the other end is gone")
            num_received += received


def id_of_port(port: int, *, salt: str = "") -> bytes:
    """The id of a group whose rank 0 listens at this port. With salt no other group has it."""
    return f"{port} {salt}".encode().ljust(UNIQUE_ID_BYTES, b"\0")


def port_of(nccl_id: bytes) -> int:
    """Where rank 0 of the group with this id listens."""
    return int(nccl_id.split()[0])
