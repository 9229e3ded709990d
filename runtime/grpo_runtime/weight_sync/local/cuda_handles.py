"""Handles of CUDA IPC as plain values, made and opened by torch, which counts who uses the memory.

What torch pickles between its own processes are bytes and numbers (`torch.multiprocessing.reductions`); here
they travel as JSON. The GPU is named by its UUID: another process may see it under another number.

Torch lets go of exported memory when its counter of users is 0. It is 1 for each handle, and each time that
the handle was opened and let go of takes one off, however often that was, below 0 too. Here a handle is
opened in each weight sync. So who opens it is given no counter, and `release` takes the only one off.

torch drops the file of its counters when none is in use, and each thread that takes fresh memory of a GPU
looks whether it can: also while the first counter of a file is being made, which then ends the process with a
segmentation fault (pytorch, torch/csrc/CudaIPCTypes.cpp). So one that nobody opens is in use from the start.
"""

from functools import cache
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_runtime.errors import first_line
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.local.ipc import Handle
from grpo_runtime.weight_sync.stream.device import CudaDevice

_NO_COUNTER = b"/grpo-no-counter"
"""A name of shared memory that there is none of."""
HexBytes = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){1,8192}$", repr=False)]


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
    """Of one GPU; see `Handles`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def prepare_exports(self) -> None:
        """See `Handles`."""
        _keep_a_counter(self._device.device)

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """See `Handles`."""
        return self._device.empty(num_bytes)

    def export(self, memory: torch.Tensor) -> Handle:
        """See `Handles`."""
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
        """See `Handles`."""
        storage: Any = torch.UntypedStorage
        found = CudaHandle.model_validate(handle)
        storage._release_ipc_counter_cuda(bytes.fromhex(found.counter), found.counter_offset)

    def open(self, handle: Handle) -> torch.Tensor:
        """See `Handles`."""
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
