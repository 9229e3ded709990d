"""A copy of all weights in the memory of the trainer's process: it is sent while it is still being made, and
once more to each engine that joins later."""

import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import cache

import torch

from grpo_runtime.weight_sync.interface import Info, WeightSyncError
from grpo_runtime.weight_sync.source import WeightSource, read_tensors
from grpo_runtime.weight_sync.stream.manifest import (
    LARGEST_BUFFER_BYTES,
    UpdateInfo,
    WeightManifest,
    manifest_of,
)
from grpo_runtime.weight_sync.stream.memory import PRIVATE_MEMORY, Device, MemoryPool, StreamMemory
from grpo_runtime.weight_sync.stream.packing import CpuPacking, DevicePacking, Packing, PackingForHost
from grpo_runtime.weight_sync.tag import KEY_BYTES, TAG_BYTES, make_digest


class HostCopy:
    """All weights as one stream, which a thread of its own fills from `source`. Raises ValueError, before
    anything is read, for weights that cannot travel.

    `manifest` describes the stream, which lies in `memory`. `key` is that of its tag, made for this copy
    alone. One tensor of the source after the other is gathered and let go. `packing` is how they come into
    the stream.
    """

    checking_seconds = 0.0
    """Engines check the bytes while they arrive."""

    def __init__(
        self,
        source: WeightSource,
        *,
        buffer_bytes: int | None = None,
        pool: MemoryPool = PRIVATE_MEMORY,
        packing: Packing | None = None,
    ) -> None:
        self.manifest: WeightManifest = manifest_of(source.layout(), buffer_bytes=buffer_bytes)
        self.key = secrets.token_bytes(KEY_BYTES)
        self.memory = pool.take(self.manifest.stream_bytes)
        self._is_reusable = threading.Event()
        self._is_reusable.set()
        weakref.finalize(self, _give_back, pool, self.memory, self._is_reusable)
        self._stream = self.memory.stream
        self._packing = packing or CpuPacking()
        self._num_ready = 0
        self._num_sent = 0
        self._num_wanted = 0
        self._seconds = 0.0
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._fill, args=(source,), name="pack-weights", daemon=True)
        self._thread.start()

    @property
    def num_bytes(self) -> int:
        """Length of the stream without its tag."""
        return self.manifest.num_bytes

    @property
    def num_bytes_sent(self) -> int:
        """What has left the trainer: every call of `buffers` serves a group or a connection. A buffer counts
        once the next one is asked for: the transport is done with it or has it on its way."""
        return self._num_sent

    @property
    def tag_algorithm(self) -> str:
        """How the tag is computed; see `tag`."""
        return self._packing.tag_algorithm

    def update_info(self, *, connection: str = "", stall_seconds: float) -> Info:
        """The `update` of these weights, for the control channel."""
        info = UpdateInfo(
            manifest=self.manifest,
            key=self.key.hex(),
            tag=self.tag_algorithm,
            connection=connection,
            stall_seconds=stall_seconds,
        )
        return info.model_dump(mode="json", exclude={"abort"})

    def buffers(self, *, stall_seconds: float | None = None) -> Iterator[torch.Tensor]:
        """The stream in order, with its tag, as uint8 tensors [buffer_bytes] of which the last one is as long
        as what is left. Waits for each until it is full. May be called again and again, from any thread.

        Raises WeightSyncError when the source cannot be read, or gives no buffer for `stall_seconds`.
        """
        end = 0
        for buffer in self._stream.split(self.manifest.buffer_bytes):
            end += len(buffer)
            self.wait_for(end, timeout_seconds=stall_seconds)
            packed = self._packing.packed(end)
            yield buffer if packed is None else packed
            with self._changed:
                self._num_sent += len(buffer)

    def wait_for_first_buffer(self, *, timeout_seconds: float) -> None:
        """Wait until there is something to send. Raises WeightSyncError as `buffers` does."""
        end = min(self.manifest.buffer_bytes, self.manifest.stream_bytes)
        self.wait_for(end, timeout_seconds=timeout_seconds)

    def wait_for(self, end: int, *, timeout_seconds: float | None = None) -> None:
        """Wait until the stream is there up to `end`. Raises WeightSyncError as `buffers` does."""
        with self._changed:
            if end > self._num_wanted:
                self._num_wanted = end
                self._changed.notify_all()
            is_there = self._changed.wait_for(
                lambda: self._num_ready >= end or self._error is not None, timeout_seconds
            )
            if self._error is not None:
                raise WeightSyncError(f"the trainer's weights cannot be read: {self._error}")
            if not is_there:
                raise WeightSyncError(
                    f"the trainer's own weights come too slowly: nothing to send for {timeout_seconds:g} s"
                )

    def wait_until_wanted(self, end: int, *, timeout_seconds: float) -> None:
        """Wait until somebody asks for the stream up to `end`, or for that time."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_wanted >= end, timeout_seconds)

    @property
    def tag(self) -> bytes:
        """The tag of the stream, once all of it is there."""
        return bytes(self._stream[-TAG_BYTES:].numpy())

    def set_aside(self) -> None:
        """Do not use the memory again: a receiver that was aborted may still read it."""
        self._is_reusable.clear()

    def wait_until_read(self) -> float:
        """Wait until the source is no longer read; returns the seconds that the copy took.

        Raises what reading it raised.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._seconds

    def _fill(self, source: WeightSource) -> None:
        start = time.monotonic()
        try:
            digest = make_digest(self.tag_algorithm, self.key, self.manifest.tensors)
            tensors = zip(self.manifest.tensors, (tensor for _, tensor in read_tensors(source)), strict=True)
            weights = self._stream[: self.manifest.num_bytes]
            for end in self._packing.pack(tensors, weights, copy=self, digest=digest):
                self._mark_ready(end)
            self._stream[-TAG_BYTES:] = torch.frombuffer(bytearray(digest.tag()), dtype=torch.uint8)
            self._seconds = time.monotonic() - start
            self._mark_ready(len(self._stream))
        except BaseException as error:  # handed on by `buffers` and `wait_until_read`
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _mark_ready(self, end: int) -> None:
        buffer_bytes, before = self.manifest.buffer_bytes, self._num_ready
        with self._changed:
            self._num_ready = end
            if end // buffer_bytes > before // buffer_bytes or end == len(self._stream):
                self._changed.notify_all()


def _give_back(pool: MemoryPool, memory: StreamMemory, is_reusable: threading.Event) -> None:
    if is_reusable.is_set():
        pool.give_back(memory)


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


def device_copy(
    source: WeightSource, device: Device, *, buffer_bytes: int = LARGEST_BUFFER_BYTES
) -> HostCopy:
    """A copy that is packed on the device and sent from there. Raises ValueError for weights that cannot
    travel."""
    packing = DevicePacking(device)
    return HostCopy(source, buffer_bytes=buffer_bytes, pool=device.host_pool, packing=packing)


def device_copies(rank_device: Callable[[], Device]) -> Callable[[WeightSource], HostCopy]:
    """Makes copies as `device_copy` does, all of them on one device that is made for the first: cuBLAS, which
    computes tags, keeps 32 MiB for each stream that it has met."""
    packing_device = cache(rank_device)
    return lambda source: device_copy(source, packing_device())
