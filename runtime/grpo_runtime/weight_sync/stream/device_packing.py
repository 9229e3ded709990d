"""Packs weights on the GPU where they are, two buffers at a time, and copies each to the host as it is full.

A buffer is sent from where it was packed. Packing runs ahead of sending by two buffers and waits for it, but
not for long: training goes on only once everything is packed. A sender that comes later, or is slower, takes
what it lacks from the host copy.
"""

import time
from collections import deque
from collections.abc import Iterator

import torch

from grpo_runtime.weight_sync.source import WeightSource
from grpo_runtime.weight_sync.stream.device import Device, Event
from grpo_runtime.weight_sync.stream.digest import Digest
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.manifest import (
    ALIGNMENT_BYTES,
    BUFFERS_IN_FLIGHT,
    DTYPES,
    LARGEST_BUFFER_BYTES,
    TensorEntry,
)
from grpo_runtime.weight_sync.stream.packing import Copy, PlacedTensors
from grpo_runtime.weight_sync.stream.tags import ROWS

LONGEST_WAIT_SECONDS = 2.0
"""For all senders of a copy together."""


def device_copy(
    source: WeightSource, device: Device, *, buffer_bytes: int = LARGEST_BUFFER_BYTES
) -> HostCopy:
    """A copy that is packed on the device. Raises ValueError for weights that cannot travel."""
    packing = DevicePacking(device)
    return HostCopy(source, buffer_bytes=buffer_bytes, pool=device.host_pool, packing=packing)


class DevicePacking:
    """Fills one copy by way of buffers on a device; see `Packing`."""

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
        """See `Packing`. Raises ValueError for buffers in which tensors would not be aligned."""
        if copy.manifest.buffer_bytes % ALIGNMENT_BYTES:
            raise ValueError(f"buffers on a device must be of a multiple of {ALIGNMENT_BYTES} bytes")
        under_way: deque[tuple[int, torch.Tensor, Event]] = deque()
        # also what the source does to gather its tensors
        with self._device.use():
            for start, buffer in self._full_buffers(tensors, len(stream), copy):
                end = start + len(buffer)
                copied = self._device.copy_to_host(stream[start:end], buffer)
                digest.update(buffer)
                under_way.append((end, buffer, copied))
                if len(under_way) == BUFFERS_IN_FLIGHT:
                    yield self._arrived(*under_way.popleft(), copy)
            while under_way:
                yield self._arrived(*under_way.popleft(), copy)

    def packed(self, end: int) -> torch.Tensor | None:
        """See `Packing`. Those before it are let go of."""
        self._let_go_before(end)
        return self._packed.get(end)

    def _full_buffers(
        self, tensors: PlacedTensors, num_bytes: int, copy: Copy
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """The buffers of the stream, each with where it starts."""
        size = copy.manifest.buffer_bytes
        start, buffer = 0, torch.empty(0, dtype=torch.uint8)
        for entry, tensor in tensors:
            values = tensor.detach().reshape(-1)
            at = entry.offset
            while at < entry.end:
                if at == start + len(buffer):
                    wanted = at - (BUFFERS_IN_FLIGHT - 1) * size
                    self._wait_until_wanted(wanted, copy)
                    # one that is wanted may not be taken yet
                    self._let_go_before(wanted)
                    start, buffer = at, self._device.empty(min(size, num_bytes - at))
                end = min(entry.end, start + len(buffer))
                _place(entry, values, buffer, at=at, end=end, start=start)
                if end == start + len(buffer):
                    yield start, buffer
                at = end

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


def _place(
    entry: TensorEntry, values: torch.Tensor, buffer: torch.Tensor, *, at: int, end: int, start: int
) -> None:
    """Cast what belongs to the bytes `at` to `end` of the stream into the buffer, which begins at `start`."""
    dtype = DTYPES[entry.dtype]
    end_of_values = min(end, entry.offset + entry.num_bytes)
    first = (at - entry.offset) // dtype.itemsize
    last = (end_of_values - entry.offset) // dtype.itemsize
    target = buffer[at - start : end_of_values - start].view(dtype)
    target.copy_(values[first:last], non_blocking=True)
    buffer[end_of_values - start : end - start].zero_()
