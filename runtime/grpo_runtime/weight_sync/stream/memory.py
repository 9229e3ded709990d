"""StreamMemory for a stream of weights: of this process alone, or shared with others on this machine."""

import mmap
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from typing import Protocol

import torch


@dataclass(frozen=True)
class StreamMemory:
    """`stream` is uint8 [num_bytes], on the CPU. `file` is what another process maps to see the same bytes;
    None where none can. It has no name, and is gone once nobody holds it."""

    stream: torch.Tensor
    file: FileIO | None = None


class Staging(Protocol):
    """Where an engine keeps weights that it has not loaded yet."""

    def staging_memory(self, num_bytes: int) -> torch.Tensor:
        """StreamMemory for so many bytes (uint8 [num_bytes])."""
        ...

    def needed_on_host(self, num_bytes: int) -> int:
        """How much of the host's memory that would take."""
        ...


class HostStaging:
    """StreamMemory of the host; see `Staging`."""

    def staging_memory(self, num_bytes: int) -> torch.Tensor:
        """See `Staging`."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def needed_on_host(self, num_bytes: int) -> int:
        """See `Staging`."""
        return num_bytes


HOST = HostStaging()


class MemoryPool:
    """Keeps the memory that was used last: a page that is touched for the first time costs more than the
    bytes that are copied to it."""

    def __init__(self, make: Callable[[int], StreamMemory]) -> None:
        self._make = make
        # no lock: what gives memory back may be the garbage collector, in the middle of anything
        self._spare: deque[StreamMemory] = deque(maxlen=1)

    def take(self, num_bytes: int) -> StreamMemory:
        """StreamMemory of this size, with any contents."""
        try:
            memory = self._spare.pop()
        except IndexError:
            return self._make(num_bytes)
        return memory if len(memory.stream) == num_bytes else self._make(num_bytes)

    def give_back(self, memory: StreamMemory) -> None:
        """Keep this for the next one who asks, instead of what was kept before."""
        self._spare.append(memory)


def private_memory(num_bytes: int) -> StreamMemory:
    """StreamMemory of this process."""
    return StreamMemory(torch.empty(num_bytes, dtype=torch.uint8))


def shared_memory(num_bytes: int) -> StreamMemory:
    """StreamMemory that another process sees once it is handed the file."""
    return map_memory(nameless_file(num_bytes), num_bytes=num_bytes)


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
