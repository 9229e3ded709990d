"""A stand-in for the handles of CUDA IPC: they name memory of a process that counts as a GPU's."""

import os
from io import FileIO
from pathlib import Path

import torch
from stand_in_nccl import StandInDevice

from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.ipc import Handle
from grpo_runtime.weight_sync.stream.memory import StreamMemory, map_memory, shared_memory


class StandInHandles:
    """Names of files without a folder, which another process of this machine can open; see `Handles`."""

    def __init__(self, device: StandInDevice) -> None:
        self._device = device
        self._memory: dict[int, StreamMemory] = {}

    def prepare_exports(self) -> None:
        """Files need none."""

    def allocate(self, num_bytes: int) -> torch.Tensor:
        self._device.require_use()
        memory = shared_memory(num_bytes)
        self._memory[memory.stream.data_ptr()] = memory
        return memory.stream

    def export(self, memory: torch.Tensor) -> Handle:
        file = self._memory[memory.data_ptr()].file
        assert file is not None
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        return {"path": path, "inode": _inode(file), "num_bytes": len(memory)}

    def release(self, handle: Handle) -> None:
        self._memory.clear()

    def open(self, handle: Handle) -> torch.Tensor:
        self._device.require_use()
        try:
            file = FileIO(Path(handle["path"]), "r+")
        except OSError as error:
            raise WeightSyncError(f"the trainer is gone: {error}") from error
        if _inode(file) != handle["inode"]:
            # the number of the file descriptor is that of another file by now
            raise WeightSyncError("the trainer has let go of this memory")
        return map_memory(file, num_bytes=handle["num_bytes"]).stream


def _inode(file: FileIO) -> int:
    return os.fstat(file.fileno()).st_ino
