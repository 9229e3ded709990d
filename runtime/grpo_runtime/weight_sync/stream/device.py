"""The GPU of a process as weights pass through it: its memory, its streams, and host memory that it reaches
without a detour. The tests put a stand-in on the CPU in its place."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from grpo_runtime.locked_memory import locked_memory
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.stream.memory import MemoryPool, Staging, StreamMemory, nameless_file

_FREE_BYTES_LEFT = 2**30
"""What stays free beside staged weights, for the engine that loads them."""


class Event(Protocol):
    """A place in a stream."""

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
        """StreamMemory of the device (uint8 [num_bytes])."""
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


def registered_memory(num_bytes: int) -> StreamMemory:
    """Host memory that the GPU copies to and from by itself."""
    return StreamMemory(locked_memory(num_bytes))


def registered_shared_memory(num_bytes: int) -> StreamMemory:
    """Such memory that another process sees once it is handed the file."""
    file = nameless_file(num_bytes)
    return StreamMemory(locked_memory(num_bytes, file=file), file)


REGISTERED_MEMORY = MemoryPool(registered_memory)
REGISTERED_MEMORY_TO_SHARE = MemoryPool(registered_shared_memory)


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
        """See `Device`."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            self._stream.wait_stream(torch.cuda.default_stream(self.device))
            yield

    def empty(self, num_bytes: int) -> torch.Tensor:
        """See `Device`."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def staging_memory(self, num_bytes: int) -> torch.Tensor:
        """See `Device`."""
        if self.needed_on_host(num_bytes):
            return registered_memory(num_bytes).stream
        return self.empty(num_bytes)

    def needed_on_host(self, num_bytes: int) -> int:
        """See `Device`."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return 0 if free >= num_bytes + _FREE_BYTES_LEFT else num_bytes

    def holds(self, tensor: torch.Tensor) -> bool:
        """See `Device`."""
        return tensor.device == self.device

    def copy_to_host(self, target: torch.Tensor, source: torch.Tensor) -> Event:
        """See `Device`."""
        self._host_stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._host_stream):
            target.copy_(source, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        return event

    def synchronize(self) -> None:
        """See `Device`."""
        torch.cuda.current_stream(self.device).synchronize()


def device_of_rank() -> CudaDevice:
    """The GPU of this training process: the one that its rank in the pod names, whichever thread asks."""
    return CudaDevice(torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))))


def gpu_of_rank() -> CudaDevice | None:
    """The GPU of this training process; None where it computes on the CPU."""
    return device_of_rank() if torch.cuda.is_available() else None
