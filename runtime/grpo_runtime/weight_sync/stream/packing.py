"""How the tensors of a source come into the stream of a copy: by the CPU, or on the GPU where they are."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol

import torch

from grpo_runtime.weight_sync.stream.manifest import (
    ALIGNMENT_BYTES,
    BUFFERS_IN_FLIGHT,
    WIRE_DTYPES,
    TensorEntry,
    WeightManifest,
    view_of,
)
from grpo_runtime.weight_sync.stream.memory import Device, Event
from grpo_runtime.weight_sync.tag import POLY1305, ROWS, Digest

_PIECE_ELEMENTS = 256 * 1024
"""Copied and digested at a time, which a core's cache holds."""
LONGEST_WAIT_SECONDS = 2.0
"""Longest wait for all senders of a copy together."""
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
        """How the tag of the stream is computed; see `tag`."""
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
    """Copies piece by piece on the CPU."""

    tag_algorithm = POLY1305

    def pack(
        self, tensors: PlacedTensors, stream: torch.Tensor, *, copy: Copy, digest: Digest
    ) -> Iterator[int]:
        """Fill `stream` (uint8, without the tag) in the dtypes that travel, and give its bytes to `digest`;
        yields up to which byte both have them."""
        start = 0
        for entry, tensor in tensors:
            for end in _copy(entry, tensor, stream):
                digest.update(stream[start:end])
                yield end
                start = end

    def packed(self, end: int) -> None:
        """None: a piece is copied to the stream at once."""


class DevicePacking:
    """Packs on a GPU, two buffers at a time, and copies each to the host as it is full.

    A buffer is sent from where it was packed. Packing runs ahead of sending by two buffers and waits for it,
    but not for long: training continues only once everything is packed. A sender that comes later, or is
    slower, takes what it lacks from the host copy.
    """

    tag_algorithm = ROWS

    def __init__(self, device: Device) -> None:
        self._device = device
        self._packed: dict[int, torch.Tensor] = {}
        """The buffers on the device by where they end. What is taken out of it lives as long as somebody
        sends it."""
        self._seconds_left = LONGEST_WAIT_SECONDS

    def pack(
        self, tensors: PlacedTensors, stream: torch.Tensor, *, copy: Copy, digest: Digest
    ) -> Iterator[int]:
        """Fill `stream` (uint8, without the tag) in the dtypes that travel, and give its bytes to `digest`;
        yields up to which byte both have them. Raises ValueError for buffers in which tensors would not be
        aligned."""
        under_way: deque[tuple[int, torch.Tensor, Event]] = deque()
        # also what the source does to gather its tensors
        with self._device.use():
            new_buffer = partial(self._new_buffer, copy=copy)
            for start, buffer in _full_buffers(tensors, len(stream), copy=copy, new_buffer=new_buffer):
                end = start + len(buffer)
                copied = self._device.copy_to_host(stream[start:end], buffer)
                digest.update(buffer)
                under_way.append((end, buffer, copied))
                if len(under_way) == BUFFERS_IN_FLIGHT:
                    yield self._arrived(*under_way.popleft(), copy)
            while under_way:
                yield self._arrived(*under_way.popleft(), copy)

    def packed(self, end: int) -> torch.Tensor | None:
        """The buffer that ends at this byte where it was packed, if it is still there and elsewhere than in
        the stream. Those before it are let go of."""
        self._let_go_before(end)
        return self._packed.get(end)

    def _new_buffer(self, start: int, num_bytes: int, *, copy: Copy) -> torch.Tensor:
        """Memory for the buffer that starts there, once the one before the last is wanted."""
        wanted = start - (BUFFERS_IN_FLIGHT - 1) * copy.manifest.buffer_bytes
        self._wait_until_wanted(wanted, copy)
        # one that is wanted may not be taken yet
        self._let_go_before(wanted)
        return self._device.empty(num_bytes)

    def _arrived(self, end: int, buffer: torch.Tensor, copied: Event, copy: Copy) -> int:
        """Wait until a buffer is on the host, and keep it on the device too."""
        copied.synchronize()
        if end % copy.manifest.buffer_bytes == 0:  # the last one is sent with the tag, from the host
            self._packed[end] = buffer
        return end

    def _let_go_before(self, end: int) -> None:
        for earlier in [known for known in list(self._packed) if known < end]:
            # another thread may have been first
            self._packed.pop(earlier, None)

    def _wait_until_wanted(self, end: int, copy: Copy) -> None:
        start = time.monotonic()
        copy.wait_until_wanted(end, timeout_seconds=self._seconds_left)
        self._seconds_left = max(0.0, self._seconds_left - (time.monotonic() - start))


class PackingForHost:
    """Packs on a GPU for senders that take everything from the host, so that it waits for none of them. The
    CPU computes the tag."""

    tag_algorithm = POLY1305

    def __init__(self, device: Device) -> None:
        self._device = device

    def pack(
        self, tensors: PlacedTensors, stream: torch.Tensor, *, copy: Copy, digest: Digest
    ) -> Iterator[int]:
        """Fill `stream` (uint8, without the tag) in the dtypes that travel, and give its bytes to `digest`;
        yields up to which byte both have them. Raises ValueError for buffers in which tensors would not be
        aligned."""
        under_way: deque[tuple[int, torch.Tensor, Event]] = deque()

        def arrived() -> int:
            start, buffer, copied = under_way.popleft()
            end = start + len(buffer)
            copied.synchronize()
            digest.update(stream[start:end])
            return end

        # also what the source does to gather its tensors
        with self._device.use():
            for start, buffer in _full_buffers(
                tensors, len(stream), copy=copy, new_buffer=lambda _, num_bytes: self._device.empty(num_bytes)
            ):
                end = start + len(buffer)
                under_way.append((start, buffer, self._device.copy_to_host(stream[start:end], buffer)))
                if len(under_way) == BUFFERS_IN_FLIGHT:
                    yield arrived()
            while under_way:
                yield arrived()

    def packed(self, end: int) -> None:
        """None: what is full is on the host."""


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


def _full_buffers(
    tensors: PlacedTensors,
    num_bytes: int,
    *,
    copy: Copy,
    new_buffer: Callable[[int, int], torch.Tensor],
) -> Iterator[tuple[int, torch.Tensor]]:
    """The buffers of a stream of so many bytes without its tag, each with where it starts. `new_buffer` gives
    memory of the device for the one that starts at a byte and has so many.

    Raises ValueError for buffers in which tensors would not be aligned.
    """
    size = copy.manifest.buffer_bytes
    if size % ALIGNMENT_BYTES:
        raise ValueError(f"buffers on a device must be of a multiple of {ALIGNMENT_BYTES} bytes")
    start, buffer = 0, torch.empty(0, dtype=torch.uint8)
    for entry, tensor in tensors:
        values = tensor.detach().reshape(-1)
        at = entry.offset
        while at < entry.end:
            if at == start + len(buffer):
                start, buffer = at, new_buffer(at, min(size, num_bytes - at))
            end = min(entry.end, start + len(buffer))
            _place(entry, values, buffer, at=at, end=end, start=start)
            if end == start + len(buffer):
                yield start, buffer
            at = end


def _place(
    entry: TensorEntry, values: torch.Tensor, buffer: torch.Tensor, *, at: int, end: int, start: int
) -> None:
    """Cast what belongs to the bytes `at` to `end` of the stream into the buffer, which begins at `start`."""
    dtype = WIRE_DTYPES[entry.dtype]
    end_of_values = min(end, entry.offset + entry.num_bytes)
    first = (at - entry.offset) // dtype.itemsize
    last = (end_of_values - entry.offset) // dtype.itemsize
    target = buffer[at - start : end_of_values - start].view(dtype)
    target.copy_(values[first:last], non_blocking=True)
    buffer[end_of_values - start : end - start].zero_()
