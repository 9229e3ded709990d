"""Host memory that a GPU copies to and from by itself."""

import logging
import mmap
from collections.abc import Callable
from contextlib import AbstractContextManager
from io import FileIO

import torch

log = logging.getLogger(__name__)


class _LockedMap(mmap.mmap):
    """Memory that the GPU may reach for as long as it is mapped."""

    address: int | None = None

    def __del__(self) -> None:
        if self.address is not None:
            with _device_in_use():
                torch.cuda.cudart().cudaHostUnregister(self.address)


def locked_memory(num_bytes: int, *, file: FileIO | None = None) -> torch.Tensor:
    """Memory (uint8 [num_bytes]) whose pages stay where they are, so that the GPU copies it at full speed
    beside other work: of this process, or what it maps of `file`, which must have so many bytes.

    It is registered instead of allocated as pinned memory, for which torch takes the next power of two. Where
    so much cannot be locked it is memory as any other, which is slower to copy.
    """
    mapped = _LockedMap(-1 if file is None else file.fileno(), num_bytes)
    memory = torch.frombuffer(mapped, dtype=torch.uint8)
    with _device_in_use():
        error = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), num_bytes, 0))
    if error != 0:
        log.warning("%d bytes of host memory cannot be locked for the GPU: copies are slower", num_bytes)
    else:
        mapped.address = memory.data_ptr()
    return memory


def _device_in_use() -> AbstractContextManager[object]:
    """The GPU on which this process has a context already. CUDA would make one on that of the calling thread,
    which is the first GPU in a new thread, and takes some hundred megabytes of it. What is registered with
    one is so with all."""
    has_context: Callable[[int], bool] = vars(torch._C)["_cuda_hasPrimaryContext"]
    in_use = (number for number in range(torch.cuda.device_count()) if has_context(number))
    return torch.cuda.device(next(in_use, torch.cuda.current_device()))
