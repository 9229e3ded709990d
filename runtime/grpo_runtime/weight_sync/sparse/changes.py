"""What changed between two streams of the same tensors: a table for the control channel, and its bytes.

Tensors are compared in parts, so that no step needs memory for more than one part beside the streams, and by
their bits: a NaN equals itself, and 0.0 differs from -0.0. Which elements of a part changed is said by gaps
or by a bitmap, whichever is shorter.
"""

import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field

from grpo_runtime.weight_sync.stream.manifest import WIRE_DTYPES, WeightManifest, aligned
from grpo_runtime.weight_sync.tag import TAG_BYTES

PART_ELEMENTS = 2**22
MOST_OF_ALL = 0.5
"""Changes are sent if they are no more than this share of the bytes of all weights: they are sent once all
weights are compared, and all weights would be sent while they are copied."""
_MOST_THREADS = 8
"""More are not faster: memory is the limit then, and training computes beside them."""
_SKIP = 255
"""A byte of the gaps that only says that so many elements did not change."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Encoding(StrEnum):
    """How the changed elements of a part are found."""

    GAPS = "gaps"
    """A byte for each: how many elements before it did not change, less than 255, after a byte of 255 for
    each 255 more of them."""
    BITMAP = "bitmap"
    """A bit for each element of the part, the lowest bit of a byte first."""
    ALL = "all"
    """Every element of the part is sent."""


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ChangedPart(_Wire):
    """Elements of a tensor, of which some changed: `size` elements from `start` on of the one at `tensor` in
    the manifest. Their index has `index_bytes`."""

    tensor: Annotated[int, Field(ge=0)]
    start: Annotated[int, Field(ge=0)]
    size: Annotated[int, Field(ge=1, le=PART_ELEMENTS)]
    encoding: Encoding
    num_changed: Annotated[int, Field(ge=1)]
    index_bytes: Annotated[int, Field(ge=0)]


class ChangeTable(_Wire):
    """The parts with changes. Of each, the index follows and then the new bits of the elements, both at
    multiples of 16 bytes; `num_bytes` in all, without the tag. `base` is the tag of the stream that they
    change."""

    base: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * TAG_BYTES}}}$")]
    parts: tuple[ChangedPart, ...]
    num_bytes: Annotated[int, Field(ge=0)]

    @property
    def stream_bytes(self) -> int:
        """Bytes that travel: those of the changes, and the tag of all weights."""
        return self.num_bytes + TAG_BYTES

    def problems(self, manifest: WeightManifest) -> list[str]:
        """Sentences about what does not fit the tensors of the manifest, or itself."""
        end = 0
        last = (-1, 0)
        for part in self.parts:
            if part.tensor >= len(manifest.tensors):
                return [f"changes of tensor {part.tensor}, and there are {len(manifest.tensors)}"]
            entry = manifest.tensors[part.tensor]
            first = last[1] if part.tensor == last[0] else 0
            if part.tensor < last[0] or part.start < first:
                return [f"the changes of {entry.name} are not in order"]
            if part.start + part.size > math.prod(entry.shape):
                return [f"the changes of {entry.name} go beyond it"]
            if part.num_changed > part.size or part.index_bytes > part.size:
                return [f"more of {entry.name} changed than there is"]
            last = (part.tensor, part.start + part.size)
            end = aligned(
                aligned(end + part.index_bytes) + part.num_changed * WIRE_DTYPES[entry.dtype].itemsize
            )
        return [] if end == self.num_bytes else [f"the changes need {end} bytes and not {self.num_bytes}"]


@dataclass(frozen=True)
class Changes:
    """Changes, with their bytes (uint8 [table.num_bytes]) on the CPU; `num_changed` elements are in them."""

    table: ChangeTable
    body: torch.Tensor

    @property
    def num_changed(self) -> int:
        """How many elements are sent."""
        return sum(part.num_changed for part in self.table.parts)


@dataclass(frozen=True)
class EncodedPart:
    """The changed elements of a part: `index` (uint8) says where they are and `values` has their bits, as
    integers of their size."""

    encoding: Encoding
    index: torch.Tensor
    values: torch.Tensor


class ChangeFinder:
    """Compares two streams part by part, in their order. A part has at most `part_elements`."""

    def __init__(self, manifest: WeightManifest, *, part_elements: int = PART_ELEMENTS) -> None:
        self._manifest = manifest
        self._part_elements = part_elements
        self._parts: list[ChangedPart] = []
        self._pieces: list[torch.Tensor] = []
        self._end = 0
        self._most = int(MOST_OF_ALL * manifest.num_bytes)

    def find(self, old: torch.Tensor, new: torch.Tensor) -> Iterator[int]:
        """Compare `old` and `new` (uint8, on the CPU) in the threads that torch has, until they are found
        to differ too much. Yields up to which byte `new` must be there before it continues."""
        num_threads = min(torch.get_num_threads(), _MOST_THREADS)
        under_way: deque[tuple[int, int, int, Future[EncodedPart | None]]] = deque()
        with ThreadPoolExecutor(max_workers=num_threads, thread_name_prefix="compare-weights") as threads:
            for tensor, start, size, part, element_bytes in self._places():
                yield part.stop
                before, after = (bits_of(one[part], element_bytes=element_bytes) for one in (old, new))
                under_way.append((tensor, start, size, threads.submit(encode, before, after)))
                if len(under_way) > num_threads:
                    self._add(*under_way.popleft())
                if self._end > self._most:
                    return
            while under_way:
                self._add(*under_way.popleft())

    def changes(self, *, base: bytes) -> Changes | None:
        """The changes that were found. None when it is more than MOST_OF_ALL."""
        if self._end > self._most:
            return None
        body = torch.empty(self._end, dtype=torch.uint8)
        end = 0
        for piece in self._pieces:
            body[end : end + len(piece)] = piece
            filled, end = end + len(piece), aligned(end + len(piece))
            body[filled:end].zero_()
        table = ChangeTable(base=base.hex(), parts=tuple(self._parts), num_bytes=self._end)
        return Changes(table, body)

    def _places(self) -> Iterator[tuple[int, int, int, slice, int]]:
        """The parts: tensor, first element, number of elements, their bytes in a stream, bytes of each."""
        for number, entry in enumerate(self._manifest.tensors):
            element_bytes, num_elements = WIRE_DTYPES[entry.dtype].itemsize, math.prod(entry.shape)
            for start in range(0, num_elements, self._part_elements):
                size = min(self._part_elements, num_elements - start)
                begin = entry.offset + start * element_bytes
                yield number, start, size, slice(begin, begin + size * element_bytes), element_bytes

    def _add(self, tensor: int, start: int, size: int, compared: Future[EncodedPart | None]) -> None:
        encoded = compared.result()
        if encoded is None:
            return
        part = ChangedPart(
            tensor=tensor,
            start=start,
            size=size,
            encoding=encoded.encoding,
            num_changed=len(encoded.values),
            index_bytes=len(encoded.index),
        )
        self._parts.append(part)
        for piece in (encoded.index, encoded.values.view(torch.uint8)):
            self._pieces.append(piece)
            self._end = aligned(self._end + len(piece))


def exchange(
    stream: torch.Tensor, body: torch.Tensor, *, manifest: WeightManifest, table: ChangeTable
) -> None:
    """Put the changed elements into `stream`, and what was there into `body`, so that doing it once more
    undoes it. Both are uint8 and on one device.

    Raises ValueError for bytes that are no such changes, of which some may be in `stream` by then.
    """
    for placed in _placed_parts(stream, body, manifest=manifest, table=table):
        placed.swap()


@dataclass(frozen=True)
class _PlacedPart:
    """A part, as views of the stream and of the bytes of the changes."""

    part: ChangedPart
    elements: torch.Tensor
    index: torch.Tensor
    values: torch.Tensor

    def swap(self) -> None:
        """Exchange the changed elements. Raises ValueError for a wrong index."""
        positions = positions_of(
            self.part.encoding,
            self.index,
            num_changed=self.part.num_changed,
            num_elements=self.part.size,
        )
        before = self.elements[positions].clone()
        self.elements[positions] = self.values
        self.values.copy_(before)


def _placed_parts(
    stream: torch.Tensor, body: torch.Tensor, *, manifest: WeightManifest, table: ChangeTable
) -> Iterator[_PlacedPart]:
    end = 0
    for part in table.parts:
        entry = manifest.tensors[part.tensor]
        element_bytes = WIRE_DTYPES[entry.dtype].itemsize
        begin = entry.offset + part.start * element_bytes
        elements = stream[begin : begin + part.size * element_bytes]
        index = body[end : end + part.index_bytes]
        end = aligned(end + part.index_bytes)
        values = body[end : end + part.num_changed * element_bytes]
        end = aligned(end + part.num_changed * element_bytes)
        yield _PlacedPart(
            part,
            bits_of(elements, element_bytes=element_bytes),
            index,
            bits_of(values, element_bytes=element_bytes),
        )


def encode(old: torch.Tensor, new: torch.Tensor) -> EncodedPart | None:
    """The change that turns `old` into `new` (integers [num_elements], on the CPU) in the fewest bytes. None
    if nothing changed."""
    # numpy does this several times as fast as torch on one core
    after = new.numpy()
    changed = old.numpy() != after
    num_changed = int(np.count_nonzero(changed))
    if num_changed == 0:
        return None
    bitmap_bytes = -(-len(after) // 8)
    num_saved = (len(after) - num_changed) * after.itemsize
    if num_changed < min(bitmap_bytes, num_saved):
        positions = np.flatnonzero(changed)
        gaps = _gaps(positions)
        if len(gaps) < min(bitmap_bytes, num_saved):
            return EncodedPart(Encoding.GAPS, torch.from_numpy(gaps), torch.from_numpy(after[positions]))
    if bitmap_bytes < num_saved:
        bitmap = np.packbits(changed, bitorder="little")
        return EncodedPart(Encoding.BITMAP, torch.from_numpy(bitmap), torch.from_numpy(after[changed]))
    return EncodedPart(Encoding.ALL, torch.empty(0, dtype=torch.uint8), new)


def positions_of(
    encoding: Encoding, index: torch.Tensor, *, num_changed: int, num_elements: int
) -> torch.Tensor | slice:
    """Where the changed elements are. Raises ValueError for an index that does not say where `num_changed` of
    `num_elements` are."""
    if encoding is Encoding.ALL:
        if num_changed != num_elements:
            raise ValueError("it does not have all elements of a part")
        return slice(None)
    if encoding is Encoding.GAPS:
        steps = torch.where(index == _SKIP, _SKIP, index.to(torch.int64) + 1)
        positions = steps.cumsum(0)[index != _SKIP] - 1
    else:
        bits = (index.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8, device=index.device)) & 1
        positions = bits.view(-1).nonzero().view(-1)
    if len(positions) != num_changed:
        raise ValueError(f"its index has {len(positions)} elements and not {num_changed}")
    if num_changed and int(positions[-1]) >= num_elements:
        raise ValueError("its index goes beyond a part")
    return positions


def bits_of(part: torch.Tensor, *, element_bytes: int) -> torch.Tensor:
    """The bytes of some elements (uint8) as a view of one integer for each element."""
    return part.view(_INTEGERS[element_bytes])


def _gaps(positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    gaps = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum(gaps // _SKIP + 1) - 1
    index = np.full(int(ends[-1]) + 1, _SKIP, dtype=np.uint8)
    index[ends] = gaps % _SKIP
    return index
