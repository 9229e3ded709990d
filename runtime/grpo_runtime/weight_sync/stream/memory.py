"""Memory that weights pass through: of this process alone, shared with others on this machine, or of its GPU.

A `Device` is that GPU, with its streams and with host memory that it reaches without a detour. The tests put
a stand-in on the CPU in its place.
"""

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import FileIO
from typing import Protocol

import torch

from grpo_runtime.locked_memory import locked_memory
from grpo_runtime.weight_sync.interface import WeightSyncError

_FREE_BYTES_LEFT = 2**30
"""Bytes that stay free beside staged weights, for the engine that loads them."""


@dataclass(frozen=True)
class StreamMemory:
    """`stream` is uint8 [num_bytes], on the CPU. `file` is what another process maps to see the same bytes;
    None where none can. It has no name, and is gone once nobody holds it."""

    stream: torch.Tensor
    file: FileIO | None = None


class MemoryPool:
    """Keeps the memory that was used last: a page that is touched for the first time costs more than the
    bytes that are copied to it."""

    def __init__(self, make: Callable[[int], StreamMemory]) -> None:
        self._make = make
        # no lock: what gives memory back may be the garbage collector, in the middle of anything
        self._spare: deque[StreamMemory] = deque(maxlen=1)

    def take(self, num_bytes: int) -> StreamMemory:
        """Memory of this size, with any contents."""
        try:
            memory = self._spare.pop()
        except IndexError:
            return self._make(num_bytes)
        return memory if len(memory.stream) == num_bytes else self._make(num_bytes)

    def give_back(self, memory: StreamMemory) -> None:
        """Keep this for the next one who asks, instead of what was kept before."""
        self._spare.append(memory)


class Staging(Protocol):
    """Where an engine keeps weights that it has not loaded yet."""

    def staging_memory(self, num_bytes: int) -> torch.Tensor:
        """Memory for so many bytes (uint8 [num_bytes])."""
        ...

    def needed_on_host(self, num_bytes: int) -> int:
        """How much of the host's memory that would take."""
        ...


class HostStaging:
    """Memory of the host; see `Staging`."""

    def staging_memory(self, num_bytes: int) -> torch.Tensor:
        """Memory for so many bytes (uint8 [num_bytes])."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def needed_on_host(self, num_bytes: int) -> int:
        """How much of the host's memory that would take."""
        return num_bytes


HOST = HostStaging()


def private_memory(num_bytes: int) -> StreamMemory:
    """Memory of this process."""
    return StreamMemory(torch.empty(num_bytes, dtype=torch.uint8))


def shared_memory(num_bytes: int) -> StreamMemory:
    """Memory that another process sees once it is handed the file."""
    return map_memory(nameless_file(num_bytes), num_bytes=num_bytes)


def registered_memory(num_bytes: int) -> StreamMemory:
    """Host memory that the GPU copies to and from by itself."""
    return StreamMemory(locked_memory(num_bytes))


def registered_shared_memory(num_bytes: int) -> StreamMemory:
    """Such memory that another process sees once it is handed the file."""
    file = nameless_file(num_bytes)
    return StreamMemory(locked_memory(num_bytes, file=file), file)


def nameless_file(num_bytes: int) -> FileIO:
    """A file in memory, for as long as somebody holds it."""
    file = FileIO(os.memfd_create("grpo-weights"), "r+")
    file.truncate(num_bytes)
    return file


def map_memory(file: FileIO, *, num_bytes: int) -> StreamMemory:
    """The memory behind a file that this process was handed. Raises ValueError when it is smaller."""
    return StreamMemory(torch.frombuffer(mmap.mmap(file.fileno(), num_bytes), dtype=torch.uint8), file)


PRIVATE_MEMORY = MemoryPool(private_memory)
MEMORY_TO_SHARE = MemoryPool(shared_memory)
REGISTERED_MEMORY = MemoryPool(registered_memory)
REGISTERED_MEMORY_TO_SHARE = MemoryPool(registered_shared_memory)


class Event(Protocol):
    """A position in a stream."""

    def synchronize(self) -> None:
        """Wait until the device has come there."""
        ...


class Device(Staging, Protocol):
    """Where weights are packed, sent from, received and staged: in its memory if enough of it is free, else
    in host memory. Copies are asynchronous, in the order of the stream that `use` made the current one."""

    @property
    def host_pool(self) -> MemoryPool:
        """Host memory that the device copies to and from by itself."""
        ...

    @property
    def pool_to_share(self) -> MemoryPool:
        """Such memory that another process sees once it is handed the file."""
        ...

    def use(self) -> AbstractContextManager[None]:
        """Make it the device of this thread, with a stream that comes after all that the default stream was
        given so far: both hold for the calling thread only."""
        ...

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Memory of the device (uint8 [num_bytes])."""
        ...

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is in the memory of the device."""
        ...

    def copy_to_host(self, target: torch.Tensor, source: torch.Tensor) -> Event:
        """Copy beside what the stream does next. `source` must be kept until the event."""
        ...

    def synchronize(self) -> None:
        """Wait until the current stream is done."""
        ...


class CudaDevice:
    """A GPU; see `Device`."""

    host_pool = REGISTERED_MEMORY
    pool_to_share = REGISTERED_MEMORY_TO_SHARE

    def __init__(self, device: torch.device) -> None:
        """Raises WeightSyncError for what is no GPU."""
        if device.type != "cuda" or not torch.cuda.is_available():
            raise WeightSyncError("this weight sync needs a GPU, and this process computes on none: use Gloo")
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self.device)
        self._host_stream = torch.cuda.Stream(self.device)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Make it the device of this thread, with a stream that comes after all that the default stream was
        given so far: both hold for the calling thread only."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            self._stream.wait_stream(torch.cuda.default_stream(self.device))
            yield

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Memory of the device (uint8 [num_bytes])."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def staging_memory(self, num_bytes: int) -> torch.Tensor:
        """Memory for so many bytes (uint8 [num_bytes])."""
        if self.needed_on_host(num_bytes):
            return registered_memory(num_bytes).stream
        return self.empty(num_bytes)

    def needed_on_host(self, num_bytes: int) -> int:
        """How much of the host's memory that would take."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return 0 if free >= num_bytes + _FREE_BYTES_LEFT else num_bytes

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is in the memory of the device."""
        return tensor.device == self.device

    def copy_to_host(self, target: torch.Tensor, source: torch.Tensor) -> Event:
        """Copy beside what the stream does next."""
        self._host_stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._host_stream):
            target.copy_(source, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        return event

    def synchronize(self) -> None:
        """Wait until the current stream is done."""
        torch.cuda.current_stream(self.device).synchronize()


FindGpu = Callable[[], Device | None]
"""The GPU that the trainer's weights are on, None where they are on the CPU."""


def device_of_rank() -> CudaDevice:
    """The GPU of this training process: the one that its rank in the pod names, whichever thread asks."""
    return CudaDevice(torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))))


def gpu_of_rank() -> CudaDevice | None:
    """The GPU of this training process; None where it computes on the CPU."""
    return device_of_rank() if torch.cuda.is_available() else None
