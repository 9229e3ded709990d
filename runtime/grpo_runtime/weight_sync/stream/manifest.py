"""Weights as one stream of bytes in buffers of bounded size, and the manifest that describes the stream.

Sending tensor by tensor costs a round trip each; a stream of large buffers costs a handful. The stream ends
with a tag, by which the receiver knows that it got the very bytes that were packed (`digest`).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field

from grpo_runtime.weight_sync.source import TensorSpec
from grpo_runtime.weight_sync.stream.digest import TAG_BYTES

_SMALLEST_BUFFER_BYTES, LARGEST_BUFFER_BYTES = 4 * 1024 * 1024, 64 * 1024 * 1024
_BUFFERS_OF_A_MODEL = 16
"""So many, in these bounds: a large buffer costs less to send, and the first one is sent once it is full."""
BUFFERS_IN_FLIGHT = 2
"""Buffers on their way at once: while one is filled, digested or loaded, the next one travels."""
ALIGNMENT_BYTES = 16
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

    @property
    def end(self) -> int:
        """The byte after this tensor and its padding, which is zeros."""
        return aligned(self.offset + self.num_bytes)


class WeightManifest(_Wire):
    """Describes the stream: which tensors, how many bytes without the tag, in buffers of how many."""

    tensors: tuple[TensorEntry, ...]
    num_bytes: Annotated[int, Field(ge=0)]
    buffer_bytes: Annotated[int, Field(ge=1)]

    @property
    def stream_bytes(self) -> int:
        """Bytes of the stream with its tag."""
        return self.num_bytes + TAG_BYTES

    def problems(self) -> list[str]:
        """Sentences about what is wrong with the layout; empty when the stream can be unpacked."""
        found = []
        end, seen = 0, set[str]()
        for entry in self.tensors:
            if entry.dtype not in DTYPES:
                return [f"{entry.name} has dtype {entry.dtype}, which cannot travel"]
            if entry.name in seen:
                found.append(f"{entry.name} is there twice")
            if entry.offset < end or entry.offset % ALIGNMENT_BYTES:
                found.append(f"{entry.name} starts at byte {entry.offset}, which is taken or not aligned")
            seen.add(entry.name)
            end = entry.end
        if end > self.num_bytes:
            found.append(f"the tensors need {end} bytes but the stream has {self.num_bytes}")
        return found


def manifest_of(layout: Sequence[TensorSpec], *, buffer_bytes: int | None = None) -> WeightManifest:
    """The stream of these tensors, one behind the other, in buffers of a size that suits it.

    Raises ValueError for a dtype that cannot travel, and for a name that comes twice.
    """
    entries: list[TensorEntry] = []
    end = 0
    for spec in layout:
        dtype = str(spec.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise ValueError(f"weight {spec.name} has dtype {dtype}: only {', '.join(DTYPES)} can be sent")
        entries.append(TensorEntry(name=spec.name, dtype=dtype, shape=spec.shape, offset=end))
        end = entries[-1].end
    if buffer_bytes is None:
        buffer_bytes = min(
            max(_SMALLEST_BUFFER_BYTES, aligned(end // _BUFFERS_OF_A_MODEL)), LARGEST_BUFFER_BYTES
        )
    manifest = WeightManifest(tensors=tuple(entries), num_bytes=end, buffer_bytes=buffer_bytes)
    if problems := manifest.problems():
        raise ValueError(f"these weights cannot be packed: {'; '.join(problems)}")
    return manifest


def view_of(entry: TensorEntry, stream: torch.Tensor) -> torch.Tensor:
    """A tensor as a view of its bytes in `stream` (uint8)."""
    part = stream[entry.offset : entry.offset + entry.num_bytes]
    return part.view(DTYPES[entry.dtype]).reshape(entry.shape)


def unpack(stream: torch.Tensor, manifest: WeightManifest) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of `stream` (uint8), as views of it."""
    for entry in manifest.tensors:
        yield entry.name, view_of(entry, stream)


def aligned(position: int) -> int:
    """The next position at which a tensor may start."""
    return -(-position // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
