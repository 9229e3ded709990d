"""Packs weights on the GPU where they are, two buffers at a time, and copies each to the host as it is full.

Where a buffer can be sent from the GPU, it is sent from where it was packed. Packing runs ahead of sending by
two buffers and waits for it, but not for long: training goes on only once everything is packed. A sender that
comes later, or is slower, takes what it lacks from the host copy. Other backends take everything from there,
and packing waits for none of them.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

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
from grpo_runtime.weight_sync.stream.memory import PRIVATE_MEMORY, MemoryPool
from grpo_runtime.weight_sync.stream.packing import Copy, PlacedTensors
from grpo_runtime.weight_sync.stream.tags import POLY1305, ROWS

LONGEST_WAIT_SECONDS = 2.0
"""For all senders of a copy together."""


def device_copy(
    source: WeightSource, device: Device, *, buffer_bytes: int = LARGEST_BUFFER_BYTES
) -> HostCopy:
    """A copy that is packed on the device and sent from there. Raises ValueError for weights that cannot
    travel."""
    packing = DevicePacking(device)
    return HostCopy(source, buffer_bytes=buffer_bytes, pool=device.host_pool, packing=packing)


def host_copy(
    source: WeightSource,
    device: Device | None,
    *,
    pool: MemoryPool | None = None,
    buffer_bytes: int | None = None,
) -> HostCopy:
    """A copy that is read on the host, with the tag of a copy that the CPU packs: of weights on `device` it
    is packed there. The memory is that of `pool`, or else what the device copies to by itself. Raises
    ValueError for weights that cannot travel."""
    if device is None:
        return HostCopy(source, buffer_bytes=buffer_bytes, pool=pool or PRIVATE_MEMORY)
    packing = PackingForHost(device)
    return HostCopy(source, buffer_bytes=buffer_bytes, pool=pool or device.host_pool, packing=packing)


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
        """See `Packing`. Those before it are let go of."""
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
    """Fills one copy by way of buffers on a device, with a tag that the CPU computes; see `Packing`."""

    tag_algorithm = POLY1305

    def __init__(self, device: Device) -> None:
        self._device = device

    def pack(
        self, tensors: PlacedTensors, stream: torch.Tensor, *, copy: Copy, digest: Digest
    ) -> Iterator[int]:
        """See `Packing`. Raises ValueError for buffers in which tensors would not be aligned."""
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
        """See `Packing`: what is full is on the host."""


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
    dtype = DTYPES[entry.dtype]
    end_of_values = min(end, entry.offset + entry.num_bytes)
    first = (at - entry.offset) // dtype.itemsize
    last = (end_of_values - entry.offset) // dtype.itemsize
    target = buffer[at - start : end_of_values - start].view(dtype)
    target.copy_(values[first:last], non_blocking=True)
    buffer[end_of_values - start : end - start].zero_()
