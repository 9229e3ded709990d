"""What vLLM's own nccl engine is told and sent, as its sender in vLLM 0.32 does it.

All tensors travel in the order of the names, without padding, in chunks of bytes: a chunk ends with the
tensor that takes it above `packed_buffer_size_bytes`, and is one broadcast. There is no tag. Beside vLLM's
own keys the messages carry what our end in the engine needs, which is taken out before vLLM sees them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field

from grpo_runtime.weight_sync.interface import ReceiverSettings
from grpo_runtime.weight_sync.network.meeting import UniqueId
from grpo_runtime.weight_sync.stream.device import Device
from grpo_runtime.weight_sync.stream.manifest import (
    BUFFERS_IN_FLIGHT,
    DTYPES,
    LARGEST_BUFFER_BYTES,
    WeightManifest,
)

ENGINE_OF_VLLM = "nccl"
"""What vLLM calls the engine."""
CHUNK_BYTES = LARGEST_BUFFER_BYTES
"""A chunk has more than this only by its last tensor. vLLM's own default is 1 GiB, which an engine may lack
beside its KV cache."""

_Key = Annotated[str, Field(min_length=16, max_length=128, repr=False)]
_T = TypeVar("_T")


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class InitMessage(_Message):
    """What the verb `init` carries. NCCL's id itself: an address of a TCPStore is not accepted, because vLLM
    unpickles what it finds there."""

    nccl_unique_id_b64: Annotated[UniqueId, Field(repr=False)]
    rank_offset: Literal[1] = 1
    """The trainer is rank 0."""
    world_size: Annotated[int, Field(ge=2)]
    packed: Literal[True] = True
    packed_buffer_size_bytes: Annotated[int, Field(ge=1)]
    packed_num_buffers: Annotated[int, Field(ge=1)] = BUFFERS_IN_FLIGHT
    connection: _Key
    """The name of this connection, which no other has."""
    meeting_seconds: Annotated[float, Field(gt=0)]

    def for_vllm(self) -> dict[str, Any]:
        """What vLLM's engine is given."""
        return self.model_dump(exclude={"connection", "meeting_seconds"})


class UpdateMessage(_Message):
    """What the verb `update` carries: the tensors that follow, or `abort`."""

    names: tuple[str, ...] = ()
    dtype_names: tuple[str, ...] = ()
    shapes: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...] = ()
    connection: Annotated[str, Field(max_length=128, repr=False)] = ""
    transfer_seconds: Annotated[float, Field(gt=0)] = 10.0
    """How long all of it may take."""
    abort: Annotated[str, Field(max_length=1024)] = ""
    """Why the open update is given up; nothing follows."""

    @classmethod
    def of(cls, manifest: WeightManifest, *, connection: str, transfer_seconds: float) -> "UpdateMessage":
        """The `update` of the tensors that the manifest describes."""
        return cls(
            names=tuple(entry.name for entry in manifest.tensors),
            dtype_names=tuple(entry.dtype for entry in manifest.tensors),
            shapes=tuple(entry.shape for entry in manifest.tensors),
            connection=connection,
            transfer_seconds=transfer_seconds,
        )

    def for_vllm(self) -> dict[str, Any]:
        """What vLLM's engine is given."""
        return self.model_dump(mode="json", include={"names", "dtype_names", "shapes"})

    def problems(self, settings: ReceiverSettings) -> list[str]:
        """Sentences about why these cannot be the tensors of the engine's model."""
        if not len(self.names) == len(self.dtype_names) == len(self.shapes):
            return ["names, dtypes and shapes are not as many"]
        if len(set(self.names)) < len(self.names):
            return ["a name is there twice"]
        unknown = [f"dtype {dtype} cannot travel" for dtype in set(self.dtype_names) if dtype not in DTYPES]
        shapes: Mapping[str, tuple[int, ...]] = dict(zip(self.names, self.shapes, strict=True))
        return unknown + settings.layout_problems(shapes)


def require_views(manifest: WeightManifest, *, chunk_bytes: int) -> None:
    """Raises ValueError when a tensor begins at a byte of its chunk at which vLLM cannot read its dtype."""
    for chunk in in_chunks(manifest.tensors, lambda entry: entry.num_bytes, chunk_bytes=chunk_bytes):
        position = 0
        for entry in chunk:
            if position % DTYPES[entry.dtype].itemsize:
                raise ValueError(
                    f"weight {entry.name} would begin at byte {position} of what is sent, where vLLM's nccl "
                    f"engine cannot read {entry.dtype}: give all weights one dtype, or use NCCL"
                )
            position += entry.num_bytes


def packed_chunks(
    tensors: Iterable[tuple[str, torch.Tensor]], *, chunk_bytes: int, device: Device
) -> Iterator[torch.Tensor]:
    """The chunks of these tensors in the memory of the device (uint8 [num_bytes]), in order."""
    for chunk in in_chunks(tensors, lambda named: named[1].nbytes, chunk_bytes=chunk_bytes):
        packed = device.empty(sum(tensor.nbytes for _, tensor in chunk))
        position = 0
        for _, tensor in chunk:
            part = packed[position : position + tensor.nbytes]
            part.copy_(tensor.reshape(-1).view(torch.uint8), non_blocking=True)
            position += tensor.nbytes
        yield packed


def in_chunks(
    tensors: Iterable[_T], num_bytes: Callable[[_T], int], *, chunk_bytes: int
) -> Iterator[list[_T]]:
    """The tensors of each chunk."""
    chunk: list[_T] = []
    size = 0
    for tensor in tensors:
        chunk.append(tensor)
        size += num_bytes(tensor)
        if size > chunk_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
