"""Weights as one stream of bytes in buffers of bounded size, and the manifest that describes the stream.

Sending tensor by tensor costs a round trip each; a stream of large buffers costs a handful. The manifest goes
over the authenticated control channel, so its digest also vouches for bytes that came another way.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field

from grpo_runtime.weight_sync.source import WeightSource, read_tensors

DEFAULT_BUFFER_BYTES = 64 * 1024 * 1024
_ALIGNMENT_BYTES = 16
"""Tensors start at multiples of this, so that every dtype can be viewed in place."""

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}
"""What may travel, by the name it has in a manifest."""


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TensorEntry(_Wire):
    """One tensor of the stream: it starts at byte `offset`."""

    name: Annotated[str, Field(min_length=1, max_length=1024)]
    dtype: str
    shape: tuple[Annotated[int, Field(ge=0)], ...]
    offset: Annotated[int, Field(ge=0)]

    @property
    def num_bytes(self) -> int:
        """Bytes of this tensor, without padding."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


class WeightManifest(_Wire):
    """Describes the stream: which tensors, how many bytes, in buffers of how many, and its SHA-256."""

    tensors: tuple[TensorEntry, ...]
    num_bytes: Annotated[int, Field(ge=0)]
    buffer_bytes: Annotated[int, Field(ge=1)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    def problems(self) -> list[str]:
        """Sentences about what is wrong with the layout; empty when the stream can be unpacked."""
        found = []
        end, seen = 0, set[str]()
        for entry in self.tensors:
            if entry.dtype not in DTYPES:
                return [f"{entry.name} has dtype {entry.dtype}, which cannot travel"]
            if entry.name in seen:
                found.append(f"{entry.name} is there twice")
            if entry.offset < end or entry.offset % _ALIGNMENT_BYTES:
                found.append(f"{entry.name} starts at byte {entry.offset}, which is taken or not aligned")
            seen.add(entry.name)
            end = entry.offset + entry.num_bytes
        if end > self.num_bytes:
            found.append(f"the tensors need {end} bytes but the stream has {self.num_bytes}")
        return found


@dataclass(frozen=True)
class PackedWeights:
    """A copy of all weights, ready to be sent any number of times.

    `buffers` are uint8 tensors [buffer_bytes] on the CPU, the last one as long as what is left; together they
    are the stream. A tensor may go from one buffer into the next.
    """

    manifest: WeightManifest
    buffers: tuple[torch.Tensor, ...]

    @property
    def num_bytes(self) -> int:
        """Length of the stream, with the padding between tensors."""
        return self.manifest.num_bytes


def pack(source: WeightSource, *, buffer_bytes: int = DEFAULT_BUFFER_BYTES) -> PackedWeights:
    """Copy the weights into buffers, one tensor at a time: no more than one gathered tensor is alive with
    them.

    Raises ValueError for a dtype that cannot travel, for a name that comes twice, and when the source does
    not give what its layout says.
    """
    for spec in source.layout():
        if (dtype := _dtype_name(spec.dtype)) not in DTYPES:
            raise ValueError(f"weight {spec.name} has dtype {dtype}: only {', '.join(DTYPES)} can be sent")
    writer = _BufferWriter(buffer_bytes)
    entries = []
    for name, tensor in read_tensors(source):
        dtype, shape = _dtype_name(tensor.dtype), tuple(tensor.shape)
        entries.append(TensorEntry(name=name, dtype=dtype, shape=shape, offset=writer.num_bytes))
        writer.write(as_bytes(tensor.detach().cpu()))
        writer.write(torch.zeros(-writer.num_bytes % _ALIGNMENT_BYTES, dtype=torch.uint8))
    buffers = writer.close()
    manifest = WeightManifest(
        tensors=tuple(entries),
        num_bytes=writer.num_bytes,
        buffer_bytes=buffer_bytes,
        sha256=writer.digest.hexdigest(),
    )
    if problems := manifest.problems():
        raise ValueError(f"these weights cannot be packed: {'; '.join(problems)}")
    return PackedWeights(manifest=manifest, buffers=buffers)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def unpack(flat: torch.Tensor, manifest: WeightManifest) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of the stream `flat` (uint8 [num_bytes]), as views into it."""
    for entry in manifest.tensors:
        part = flat[entry.offset : entry.offset + entry.num_bytes]
        yield entry.name, part.view(DTYPES[entry.dtype]).reshape(entry.shape)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a CPU tensor, as uint8 [num_bytes]; a view when it is contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def as_memory(buffer: torch.Tensor) -> memoryview:
    """A uint8 CPU tensor as something hashlib reads without a copy."""
    return buffer.numpy().data


class _BufferWriter:
    """Appends bytes to buffers of a fixed size and hashes each as it fills."""

    def __init__(self, buffer_bytes: int) -> None:
        self.num_bytes = 0
        self.digest = hashlib.sha256()
        self._buffer_bytes = buffer_bytes
        self._full: list[torch.Tensor] = []
        self._current = torch.empty(buffer_bytes, dtype=torch.uint8)
        self._used = 0

    def write(self, data: torch.Tensor) -> None:
        position = 0
        while position < len(data):
            count = min(self._buffer_bytes - self._used, len(data) - position)
            self._current[self._used : self._used + count] = data[position : position + count]
            self._used += count
            position += count
            if self._used == self._buffer_bytes:
                self._seal(self._current)
                self._current = torch.empty(self._buffer_bytes, dtype=torch.uint8)
        self.num_bytes += len(data)

    def close(self) -> tuple[torch.Tensor, ...]:
        if self._used:
            # a copy, so that a small model does not hold a whole buffer
            self._seal(self._current[: self._used].clone())
        return tuple(self._full)

    def _seal(self, buffer: torch.Tensor) -> None:
        self.digest.update(as_memory(buffer))
        self._full.append(buffer)
        self._used = 0
