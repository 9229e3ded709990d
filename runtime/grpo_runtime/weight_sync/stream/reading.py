"""The stream as it is read while it arrives: the buffers that take it, and the tensors that are complete."""

from collections.abc import Iterable, Iterator

import torch

from grpo_runtime.weight_sync.stream.manifest import BUFFERS_IN_FLIGHT, DTYPES, WeightManifest


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
        yield entry.name, rest.take(entry.num_bytes).view(DTYPES[entry.dtype]).reshape(entry.shape)
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
