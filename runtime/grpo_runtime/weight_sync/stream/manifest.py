"""Weights as one stream of bytes in buffers of bounded size, the manifest that describes the stream, and how
it is read while it arrives.

Sending tensor by tensor costs a round trip each; a stream of large buffers costs a handful. The stream ends
with a tag, by which the receiver knows that it got the very bytes that were packed (`tag`).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field

from grpo_runtime.weight_sync.source import TensorSpec
from grpo_runtime.weight_sync.tag import KEY_BYTES, POLY1305, TAG_BYTES

_SMALLEST_BUFFER_BYTES, LARGEST_BUFFER_BYTES = 4 * 1024 * 1024, 64 * 1024 * 1024
_BUFFERS_OF_A_MODEL = 16
"""So many, in these bounds: a large buffer costs less to send, and the first one is sent once it is full."""
BUFFERS_IN_FLIGHT = 2
"""Buffers on their way at once: while one is filled, digested or loaded, the next one travels."""
ALIGNMENT_BYTES = 16
"""Tensors start at multiples of this, so that every dtype can be viewed in place."""

WIRE_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}
"""Dtypes that may travel, by their names in a manifest."""


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
        return math.prod(self.shape) * WIRE_DTYPES[self.dtype].itemsize

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
            if entry.dtype not in WIRE_DTYPES:
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


class UpdateInfo(BaseModel):
    """What the verb `update` carries: the manifest of the stream that follows and the key of its tag, or
    `abort`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    manifest: WeightManifest | None = None
    key: Annotated[str, Field(pattern=rf"^([0-9a-f]{{{2 * KEY_BYTES}}})?$", repr=False)] = ""
    tag: Annotated[str, Field(max_length=64)] = POLY1305
    """How the tag is computed; see `tag`."""
    connection: Annotated[str, Field(max_length=128, repr=False)] = ""
    """Which one the stream comes by, where a receiver may have had several."""
    stall_seconds: Annotated[float, Field(gt=0)] = 10.0
    """How long one buffer may take."""
    abort: Annotated[str, Field(max_length=1024)] = ""
    """Why the open update is aborted; no stream follows."""


def manifest_of(layout: Sequence[TensorSpec], *, buffer_bytes: int | None = None) -> WeightManifest:
    """The stream of these tensors, one behind the other, in buffers of a size that suits it.

    Raises ValueError for a dtype that cannot travel, and for a name that comes twice.
    """
    entries: list[TensorEntry] = []
    end = 0
    for spec in layout:
        dtype = str(spec.dtype).removeprefix("torch.")
        if dtype not in WIRE_DTYPES:
            raise ValueError(
                f"weight {spec.name} has dtype {dtype}: only {', '.join(WIRE_DTYPES)} can be sent"
            )
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
    return part.view(WIRE_DTYPES[entry.dtype]).reshape(entry.shape)


def unpack(stream: torch.Tensor, manifest: WeightManifest) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of `stream` (uint8), as views of it."""
    for entry in manifest.tensors:
        yield entry.name, view_of(entry, stream)


def aligned(position: int) -> int:
    """The next position at which a tensor may start."""
    return -(-position // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def alternating_buffers(memory: torch.Tensor, manifest: WeightManifest) -> Iterator[torch.Tensor]:
    """The buffers of a stream in order, each in the part of `memory` (uint8 [num_bytes]) that the one
    BUFFERS_IN_FLIGHT before it had."""
    size = manifest.buffer_bytes
    places = memory.split(size)
    for index, start in enumerate(range(0, manifest.stream_bytes, size)):
        yield places[index % BUFFERS_IN_FLIGHT][: manifest.stream_bytes - start]


def complete_tensors(
    buffers: Iterable[torch.Tensor], manifest: WeightManifest
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor of a stream, in order, as soon as all of its bytes are there, in memory of its own. Takes
    every buffer, also those after the last tensor."""
    rest = _Bytes(buffers)
    for entry in manifest.tensors:
        rest.skip_to(entry.offset)
        yield entry.name, rest.take(entry.num_bytes).view(WIRE_DTYPES[entry.dtype]).reshape(entry.shape)
    rest.skip_all()


class _Bytes:
    """The bytes of some buffers, read in order."""

    def __init__(self, buffers: Iterable[torch.Tensor]) -> None:
        self._buffers = iter(buffers)
        self._left = torch.empty(0, dtype=torch.uint8)
        self._position = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        """A copy of the next bytes (uint8 [num_bytes]), where they are. There must be so many."""
        if num_bytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        piece = self._next(num_bytes)
        copied = torch.empty(num_bytes, dtype=torch.uint8, device=piece.device)
        copied[: len(piece)] = piece
        filled = len(piece)
        while filled < num_bytes:
            piece = self._next(num_bytes - filled)
            copied[filled : filled + len(piece)] = piece
            filled += len(piece)
        return copied

    def skip_to(self, position: int) -> None:
        """Leave out the bytes before this one."""
        while self._position < position:
            self._next(position - self._position)

    def skip_all(self) -> None:
        """Leave out all that are left."""
        for _ in self._buffers:
            pass

    def _next(self, at_most: int) -> torch.Tensor:
        if not len(self._left):
            self._left = next(self._buffers)
        piece, self._left = self._left[:at_most], self._left[at_most:]
        self._position += len(piece)
        return piece
