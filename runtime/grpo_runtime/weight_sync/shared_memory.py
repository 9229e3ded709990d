"""Weights to engines on the same machine: they read the trainer's copy where it lies.

The trainer hands each worker the file of the copy over a Unix socket, and then a number for each buffer that
is full.
"""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import FileIO

import torch
from pydantic import ValidationError

from grpo_runtime.weight_sync.interface import Backend, Info, Peer, Reach, SenderSettings, WeightSyncError
from grpo_runtime.weight_sync.local_connection import NUMBER, LocalConnection, SocketInit, TrainerSocket
from grpo_runtime.weight_sync.receiver import StagingReceiver
from grpo_runtime.weight_sync.sender import PairwiseSender
from grpo_runtime.weight_sync.source import WeightSource
from grpo_runtime.weight_sync.stream.host_copy import HostCopy, host_copy
from grpo_runtime.weight_sync.stream.memory import (
    MEMORY_TO_SHARE,
    Device,
    FindGpu,
    StreamMemory,
    gpu_of_rank,
    map_memory,
)


def shared_copy(source: WeightSource, device: Device | None) -> HostCopy:
    """A copy in memory that engines can be handed; see `host_copy`."""
    return host_copy(source, device, pool=MEMORY_TO_SHARE if device is None else device.pool_to_share)


class SharedMemoryTransport:
    """The workers map the copy; see `LocalTransport`."""

    def __init__(self) -> None:
        self._shared: HostCopy | None = None

    def open(self) -> Info:
        """Get ready; returns what the verb `init` sends the workers besides the socket."""
        return {}

    def deliver(self, weights: HostCopy, workers: Sequence[socket.socket], *, stall_seconds: float) -> None:
        """Let the workers have every buffer, in order. Hands the workers the copy, then tells them of each
        buffer."""
        file = weights.memory.file
        if file is None:
            raise WeightSyncError("these weights are in memory that cannot be shared")
        self._shared = weights
        for worker in workers:
            socket.send_fds(worker, [NUMBER.pack(0)], [file.fileno()])
        end = 0
        for buffer in weights.buffers(stall_seconds=stall_seconds):
            end += len(buffer)
            for worker in workers:
                worker.send(NUMBER.pack(end))

    def finished(self) -> None:
        """The engine has loaded what was delivered."""
        self._shared = None

    def close(self) -> None:
        """Let go of everything; some worker may still read it."""
        if self._shared is not None:
            # nobody has said that it no longer reads them
            self._shared.set_aside()
            self._shared = None


class SharedMemoryReceiver:
    """The end in one worker; see `ReceiverTransport`."""

    def __init__(self) -> None:
        self._trainer = TrainerSocket()
        self._memory: StreamMemory | None = None

    def init(self, info: Info) -> None:
        """Come to the socket of the trainer that wrote `info`."""
        self.shutdown()
        try:
            parsed = SocketInit.model_validate(dict(info))
        except ValidationError as error:
            raise WeightSyncError(f"shared memory init not understood: {error}") from error
        self._trainer.connect(parsed)

    def missing_bytes(self, num_bytes: int) -> int:
        """None: the trainer's copy is there already."""
        return 0

    def memory(self, num_bytes: int, *, connection: str, stall_seconds: float) -> torch.Tensor:
        """The trainer's copy itself."""
        trainer = self._trainer.socket_for(connection, stall_seconds=stall_seconds)
        try:
            _, files, _, _ = socket.recv_fds(trainer, NUMBER.size, 1)
        except OSError as error:
            raise self._trainer.lost(error) from error
        if not files:
            raise self._trainer.lost(EOFError("it closed its socket"))
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

    def receive(self, buffers: Iterable[torch.Tensor], *, stall_seconds: float) -> Iterator[torch.Tensor]:
        """Wait until the trainer has filled the buffers in order."""
        end = num_ready = 0
        for buffer in buffers:
            end += len(buffer)
            while num_ready < end:
                num_ready = self._trainer.next_number()
            yield buffer

    def shutdown(self) -> None:
        """Close the socket, and let go of the copy."""
        self._memory = None
        self._trainer.close()


def _is_same(memory: StreamMemory, file: FileIO, *, num_bytes: int) -> bool:
    """Whether this file is what is mapped already."""
    if memory.file is None or len(memory.stream) != num_bytes:
        return False
    known, found = os.fstat(memory.file.fileno()), os.fstat(file.fileno())
    return (known.st_dev, known.st_ino) == (found.st_dev, found.st_ino)


def shared_memory_backend(name: str, *, rank_gpu: FindGpu = gpu_of_rank) -> Backend[HostCopy]:
    """Engines that read the trainer's copy where it lies."""

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> PairwiseSender[HostCopy]:
        connections = {
            name: LocalConnection(peer, settings, transport=SharedMemoryTransport())
            for name, peer in engines.items()
        }
        return PairwiseSender(connections, settings)

    return Backend[HostCopy](
        name=name,
        reach=Reach.MACHINE,
        prepare=lambda source: shared_copy(source, rank_gpu()),
        make_sender=make_sender,
        make_receiver=lambda settings: StagingReceiver(SharedMemoryReceiver(), settings),
        receives_while_serving=True,
    )
