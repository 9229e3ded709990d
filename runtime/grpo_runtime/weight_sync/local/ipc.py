"""Weights to engines in other processes of the same GPU: they copy from two buffers of the trainer.

Handles to the buffers go to the workers on the authenticated control channel. A worker opens them for a
transfer and closes them after it. For each buffer that is full the trainer sends a number over a socket, and
each worker sends it back when it has taken the buffer. So the trainer's GPU has room for two buffers and not
for a copy of the weights; a worker stages them on its GPU if enough is free there, and gives that back after
each sync, else in host memory, which it keeps for the next one.
"""

import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Protocol

import torch
from pydantic import Field, ValidationError

from grpo_runtime.weight_sync.interface import Info, WeightSyncError
from grpo_runtime.weight_sync.local.sockets import NUMBER, SocketInit, TrainerSocket, receive_number
from grpo_runtime.weight_sync.stream.device import Device
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.manifest import BUFFERS_IN_FLIGHT, LARGEST_BUFFER_BYTES

Handle = dict[str, Any]
"""Says to another process, in JSON values, where memory of this one is."""


class Handles(Protocol):
    """Makes handles and opens those of others."""

    def prepare_exports(self) -> None:
        """Comes before everything else in a process that exports, while no other thread uses the device."""
        ...

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Memory of the device for which there can be handles (uint8 [num_bytes])."""
        ...

    def export(self, memory: torch.Tensor) -> Handle:
        """A handle for one process."""
        ...

    def release(self, handle: Handle) -> None:
        """Whoever had the handle does not use it any more, or is gone."""
        ...

    def open(self, handle: Handle) -> torch.Tensor:
        """The memory that another process exported, until it is let go of. Raises WeightSyncError."""
        ...


class IpcInit(SocketInit):
    """What the verb `init` carries: the socket, and for each worker the handles of the buffers."""

    slot_bytes: Annotated[int, Field(gt=0)] = LARGEST_BUFFER_BYTES
    slots: list[list[Handle]]


class IpcTransport:
    """Buffers that the workers open; see `LocalTransport`."""

    def __init__(self, device: Device, handles: Handles, *, num_workers: int) -> None:
        self._device = device
        self._handles = handles
        handles.prepare_exports()
        self._num_workers = num_workers
        self._slots: list[torch.Tensor] = []
        self._exported: list[list[Handle]] = []

    def open(self) -> Info:
        """See `LocalTransport`."""
        self.close()
        with self._device.use():
            self._slots = [self._handles.allocate(LARGEST_BUFFER_BYTES) for _ in range(BUFFERS_IN_FLIGHT)]
            self._exported = [
                [self._handles.export(slot) for slot in self._slots] for _ in range(self._num_workers)
            ]
        return {"slot_bytes": LARGEST_BUFFER_BYTES, "slots": self._exported}

    def deliver(self, weights: HostCopy, workers: Sequence[socket.socket], *, stall_seconds: float) -> None:
        """See `LocalTransport`. Fills a buffer while the workers take the one before."""
        if weights.manifest.buffer_bytes > LARGEST_BUFFER_BYTES:
            raise WeightSyncError(f"these weights come in buffers of more than {LARGEST_BUFFER_BYTES} bytes")
        num_sent = 0
        with self._device.use():
            for buffer in weights.buffers(stall_seconds=stall_seconds):
                if num_sent >= BUFFERS_IN_FLIGHT:
                    _wait_until_taken(workers)
                slot = self._slots[num_sent % BUFFERS_IN_FLIGHT]
                slot[: len(buffer)].copy_(buffer, non_blocking=True)
                self._device.synchronize()
                num_sent += 1
                for worker in workers:
                    worker.send(NUMBER.pack(num_sent))
            for _ in range(min(num_sent, BUFFERS_IN_FLIGHT)):
                _wait_until_taken(workers)

    def finished(self) -> None:
        """See `LocalTransport`: the workers have copies of their own."""

    def close(self) -> None:
        """See `LocalTransport`."""
        for handle in (handle for handles in self._exported for handle in handles):
            self._handles.release(handle)
        self._slots, self._exported = [], []


class IpcReceiver:
    """The end in one worker; see `ReceiverTransport`."""

    def __init__(self, device: Device, handles: Handles, *, worker: int) -> None:
        self._device = device
        self._handles = handles
        self._worker = worker
        self._trainer = TrainerSocket()
        self._init: IpcInit | None = None
        self._on_host = torch.empty(0, dtype=torch.uint8)

    def init(self, info: Info) -> None:
        """Come to the socket of the trainer that wrote `info`."""
        self.shutdown()
        try:
            parsed = IpcInit.model_validate(dict(info))
        except ValidationError as error:
            raise WeightSyncError(f"IPC init not understood: {error}") from error
        if self._worker >= len(parsed.slots) or len(parsed.slots[self._worker]) != BUFFERS_IN_FLIGHT:
            raise WeightSyncError(f"the trainer has no buffers for worker {self._worker} of this engine")
        self._trainer.connect(parsed)
        self._init = parsed

    def missing_bytes(self, num_bytes: int) -> int:
        """See `ReceiverTransport`."""
        return 0 if len(self._on_host) == num_bytes else self._device.needed_on_host(num_bytes)

    def memory(self, num_bytes: int, *, connection: str, stall_seconds: float) -> torch.Tensor:
        """Memory of this worker: of the GPU for one update, as the trainer needs it too, or that of the host
        which it had for an update of this size before."""
        self._trainer.require(connection, stall_seconds=stall_seconds)
        if len(self._on_host) != num_bytes:
            # first without the old one
            self._on_host = torch.empty(0, dtype=torch.uint8)
        elif self._device.needed_on_host(num_bytes):
            return self._on_host
        memory = self._device.staging_memory(num_bytes)
        if not self._device.holds(memory):
            self._on_host = memory
        return memory

    def receive(self, buffers: Iterable[torch.Tensor], *, stall_seconds: float) -> Iterator[torch.Tensor]:
        """Copy the trainer's buffers in order. What is staged in host memory is read from them."""
        assert self._init is not None  # `memory` came before
        slot_bytes = self._init.slot_bytes
        with self._device.use():
            slots = [self._handles.open(handle) for handle in self._init.slots[self._worker]]
        for index, buffer in enumerate(buffers):
            if len(buffer) > slot_bytes:
                raise WeightSyncError(f"the trainer's buffers have {slot_bytes} bytes only")
            if (number := self._trainer.next_number()) != index + 1:
                raise WeightSyncError(f"the trainer sent buffer {number} where {index + 1} was due")
            passed = slots[index % BUFFERS_IN_FLIGHT][: len(buffer)]
            with self._device.use():
                buffer.copy_(passed, non_blocking=True)
                self._device.synchronize()
            yield buffer if self._device.holds(buffer) else passed
            with self._device.use():
                # what reads the trainer's buffer may only have been put into the queue of the GPU
                self._device.synchronize()
            self._trainer.send_number(number)

    def shutdown(self) -> None:
        """Close the socket."""
        self._init = None
        self._trainer.close()


def _wait_until_taken(workers: Sequence[socket.socket]) -> None:
    """Wait until every worker has taken one more buffer. Raises OSError when one does not."""
    for worker in workers:
        receive_number(worker)
