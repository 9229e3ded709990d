"""Weights to engines in other processes of the same GPU: they copy from two buffers of the trainer.

Handles to the buffers go to the workers on the authenticated control channel. A worker opens them for a
transfer and closes them after it. For each buffer that is full the trainer sends a number over a socket, and
each worker sends it back when it has taken the buffer. So the trainer's GPU has room for two buffers and not
for a copy of the weights; a worker stages them on its GPU if enough is free there, and gives that back after
each sync, else in host memory, which it keeps for the next one.
"""

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Protocol, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_runtime.errors import first_line
from grpo_runtime.weight_sync.interface import (
    Backend,
    Info,
    Peer,
    Reach,
    Receiver,
    ReceiverSettings,
    SenderSettings,
    WeightSyncError,
)
from grpo_runtime.weight_sync.local_connection import (
    NUMBER,
    LocalConnection,
    SocketInit,
    TrainerSocket,
    receive_number,
)
from grpo_runtime.weight_sync.receiver import StagingReceiver
from grpo_runtime.weight_sync.sender import PairwiseSender
from grpo_runtime.weight_sync.stream.host_copy import HostCopy, device_copies
from grpo_runtime.weight_sync.stream.manifest import BUFFERS_IN_FLIGHT, LARGEST_BUFFER_BYTES
from grpo_runtime.weight_sync.stream.memory import CudaDevice, Device

D = TypeVar("D", bound=Device)
Handle = dict[str, Any]
"""Says to another process, in JSON values, where memory of this one is."""
HexBytes = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){1,8192}$", repr=False)]
_NO_COUNTER = b"/grpo-no-counter"
"""A name of shared memory that there is none of."""


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
        """The process that opened the handle has closed it, or has ended."""
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
        """Get ready; returns what the verb `init` sends the workers besides the socket."""
        self.close()
        with self._device.use():
            self._slots = [self._handles.allocate(LARGEST_BUFFER_BYTES) for _ in range(BUFFERS_IN_FLIGHT)]
            self._exported = [
                [self._handles.export(slot) for slot in self._slots] for _ in range(self._num_workers)
            ]
        return {"slot_bytes": LARGEST_BUFFER_BYTES, "slots": self._exported}

    def deliver(self, weights: HostCopy, workers: Sequence[socket.socket], *, stall_seconds: float) -> None:
        """Let the workers have every buffer, in order: one is filled while they take the one before."""
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
        """The engine has loaded what was delivered: nothing to do, the workers have copies of their own."""

    def close(self) -> None:
        """Let go of everything; some worker may still read it."""
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
        """How much of so much `memory` would have to be taken first."""
        return 0 if len(self._on_host) == num_bytes else self._device.needed_on_host(num_bytes)

    def memory(self, num_bytes: int, *, connection: str, stall_seconds: float) -> torch.Tensor:
        """Memory of this worker: of the GPU for one update, as the trainer needs it too, or that of the host
        which it had for an update of this size before."""
        self._trainer.socket_for(connection, stall_seconds=stall_seconds)
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


class CudaHandle(BaseModel):
    """A part of an allocation of another process, and where torch counts its users in that process."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    device_uuid: Annotated[str, Field(max_length=64)]
    memory: HexBytes
    num_bytes: Annotated[int, Field(gt=0)]
    offset: Annotated[int, Field(ge=0)]
    counter: HexBytes
    counter_offset: Annotated[int, Field(ge=0)]
    event: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,512}$")]
    has_event: bool


class CudaHandles:
    """Handles of CUDA IPC on one GPU, made and opened by torch, which counts who uses the memory.

    What torch pickles between its own processes are bytes and numbers (`torch.multiprocessing.reductions`);
    here they travel as JSON. The GPU is named by its UUID: another process may see it under another number.

    Torch lets go of exported memory when its counter of users is 0. It is 1 for each handle, and each time
    that the handle was opened and let go of takes one off, however often that was, below 0 too. Here a handle
    is opened in each weight sync. So who opens it is given no counter, and `release` takes the only one off.

    torch drops the file of its counters when none is in use, and each thread that takes fresh memory of a GPU
    looks whether it can: also while the first counter of a file is being made, which then ends the process
    with a segmentation fault (pytorch, torch/csrc/CudaIPCTypes.cpp). So one that nobody opens is in use from
    the start.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def prepare_exports(self) -> None:
        """Comes before everything else in a process that exports, while no other thread uses the device."""
        _keep_a_counter(self._device.device)

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Memory of the device for which there can be handles (uint8 [num_bytes])."""
        return self._device.empty(num_bytes)

    def export(self, memory: torch.Tensor) -> Handle:
        """A handle for one process."""
        storage: Any = memory.untyped_storage()
        _, handle, num_bytes, offset, counter, counter_offset, event, has_event = storage._share_cuda_()
        return CudaHandle(
            device_uuid=uuid_of(self._device.device),
            memory=handle.hex(),
            num_bytes=num_bytes,
            offset=offset,
            counter=counter.hex(),
            counter_offset=counter_offset,
            event=event.hex(),
            has_event=has_event,
        ).model_dump()

    def release(self, handle: Handle) -> None:
        """The process that opened the handle has closed it, or has ended."""
        storage: Any = torch.UntypedStorage
        found = CudaHandle.model_validate(handle)
        storage._release_ipc_counter_cuda(bytes.fromhex(found.counter), found.counter_offset)

    def open(self, handle: Handle) -> torch.Tensor:
        """The memory that another process exported, until it is let go of."""
        try:
            found = CudaHandle.model_validate(handle)
        except ValidationError as error:
            raise WeightSyncError(f"a handle of the trainer is not understood: {error}") from error
        storage_class: Any = torch.UntypedStorage
        try:
            storage = storage_class._new_shared_cuda(
                _number_of(found.device_uuid),
                bytes.fromhex(found.memory),
                found.num_bytes,
                found.offset,
                _NO_COUNTER,
                0,
                bytes.fromhex(found.event),
                found.has_event,
            )
        except RuntimeError as error:
            raise WeightSyncError(
                f"a handle of the trainer cannot be opened here: {first_line(error)}"
            ) from error
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


@cache
def _keep_a_counter(device: torch.device) -> torch.Tensor:
    """Memory that is exported for as long as the process lives."""
    memory = torch.empty(1, dtype=torch.uint8, device=device)
    storage: Any = memory.untyped_storage()
    storage._share_cuda_()
    return memory


def uuid_of(device: torch.device) -> str:
    """The name of a GPU that is the same in all processes."""
    return str(torch.cuda.get_device_properties(device).uuid)


def _number_of(uuid: str) -> int:
    for number in range(torch.cuda.device_count()):
        if uuid_of(torch.device("cuda", number)) == uuid:
            return number
    raise WeightSyncError(f"this worker does not see the trainer's GPU {uuid}: IPC needs it in both")


def ipc_backend(
    name: str,
    *,
    rank_device: Callable[[], D],
    device: Callable[[torch.device], D],
    handles: Callable[[D], Handles],
) -> Backend[HostCopy]:
    """Engines on the trainer's GPU. `rank_device` gives that GPU to the trainer, `device` to a worker, and
    `handles` name memory of it."""

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> PairwiseSender[HostCopy]:
        def connection(peer: Peer) -> LocalConnection:
            # each with a stream of its own, so that no engine holds up another
            found = rank_device()
            transport = IpcTransport(found, handles(found), num_workers=peer.num_workers)
            return LocalConnection(peer, settings, transport=transport)

        return PairwiseSender({name: connection(peer) for name, peer in engines.items()}, settings)

    def make_receiver(settings: ReceiverSettings) -> Receiver:
        found = device(settings.device)
        return StagingReceiver(IpcReceiver(found, handles(found), worker=settings.worker), settings)

    return Backend[HostCopy](
        name=name,
        reach=Reach.MACHINE,
        prepare=device_copies(rank_device),
        make_sender=make_sender,
        make_receiver=make_receiver,
        needs_gpu=True,
        receives_while_serving=True,
    )
