"""How the tensors of a source come into the stream of a copy: by the CPU; on a GPU in `device_packing`."""

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch

from grpo_runtime.weight_sync.stream.digest import Digest
from grpo_runtime.weight_sync.stream.manifest import TensorEntry, WeightManifest, view_of
from grpo_runtime.weight_sync.stream.tags import POLY1305

_PIECE_ELEMENTS = 256 * 1024
"""Copied and digested at a time, which a core's cache holds."""

PlacedTensors = Iterable[tuple[TensorEntry, torch.Tensor]]
"""Tensors, each with its place in the stream, in order."""


class Copy(Protocol):
    """What a packing asks of the copy that it fills."""

    @property
    def manifest(self) -> WeightManifest: ...

    def wait_until_wanted(self, end: int, *, timeout_seconds: float) -> None:
        """Wait until somebody asks for the stream up to `end`, or for that time."""
        ...


class Packing(Protocol):
    """Fills one copy."""

    @property
    def tag_algorithm(self) -> str:
        """How the tag of the stream is computed; see `tags`."""
        ...

    def pack(
        self, tensors: PlacedTensors, stream: torch.Tensor, *, copy: Copy, digest: Digest
    ) -> Iterator[int]:
        """Fill `stream` (uint8, without the tag) in the dtypes that travel, and give its bytes to `digest`;
        yields up to which byte both have them."""
        ...

    def packed(self, end: int) -> torch.Tensor | None:
        """The buffer that ends at this byte where it was packed, if it is still there and elsewhere than in
        the stream."""
        ...


class CpuPacking:
    """Copies piece by piece; see `Packing`."""

    tag_algorithm = POLY1305

    def pack(
        self, tensors: PlacedTensors, stream: torch.Tensor, *, copy: Copy, digest: Digest
    ) -> Iterator[int]:
        """See `Packing`."""
        start = 0
        for entry, tensor in tensors:
            for end in _copy(entry, tensor, stream):
                digest.update(stream[start:end])
                yield end
                start = end

    def packed(self, end: int) -> None:
        """See `Packing`: a piece is copied to the stream at once."""


def _copy(entry: TensorEntry, tensor: torch.Tensor, stream: torch.Tensor) -> Iterator[int]:
    """Copy a tensor to its place, in the dtype that travels; yields where each piece ends."""
    target = view_of(entry, stream).reshape(-1)
    values = tensor.detach().reshape(-1)
    size = target.element_size()
    for start in range(0, len(values), _PIECE_ELEMENTS):
        piece = values[start : start + _PIECE_ELEMENTS]
        target[start : start + len(piece)].copy_(piece)
        is_last = start + len(piece) == len(values)
        if not is_last:
            yield entry.offset + (start + len(piece)) * size
    stream[entry.offset + entry.num_bytes : entry.end].zero_()
    yield entry.end
