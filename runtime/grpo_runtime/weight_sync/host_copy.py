"""A copy of all weights in the memory of the trainer's process: it is sent while it is still being made, and
once more to each engine that joins later."""

import secrets
import threading
import time
import weakref
from collections.abc import Iterator

import torch

from grpo_runtime.weight_sync.digest import KEY_BYTES, TAG_BYTES, StreamDigest
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.manifest import (
    TensorEntry,
    WeightManifest,
    manifest_of,
    view_of,
)
from grpo_runtime.weight_sync.memory import PRIVATE_MEMORY, Memory, MemoryPool
from grpo_runtime.weight_sync.source import WeightSource, read_tensors

_PIECE_ELEMENTS = 256 * 1024
"""Copied and digested at a time, which a core's cache holds."""


class HostCopy:
    """All weights as one stream, which a thread of its own fills from `source`. Raises ValueError, before
    anything is read, for weights that cannot travel.

    `manifest` describes the stream, which lies in `memory`. `key` is that of its tag, made for this copy
    alone. One tensor of the source after the other is gathered and let go.
    """

    def __init__(
        self,
        source: WeightSource,
        *,
        buffer_bytes: int | None = None,
        pool: MemoryPool = PRIVATE_MEMORY,
    ) -> None:
        self.manifest: WeightManifest = manifest_of(source.layout(), buffer_bytes=buffer_bytes)
        self.key = secrets.token_bytes(KEY_BYTES)
        self.memory = pool.take(self.manifest.stream_bytes)
        self._is_reusable = threading.Event()
        self._is_reusable.set()
        weakref.finalize(self, _give_back, pool, self.memory, self._is_reusable)
        self._stream = self.memory.stream
        self._num_ready = 0
        self._num_sent = 0
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
        """See `PreparedWeights`: every call of `buffers` serves a group or a connection. A buffer counts once
        the next one is asked for: the transport is done with it or has it on its way."""
        return self._num_sent

    def buffers(self, *, stall_seconds: float | None = None) -> Iterator[torch.Tensor]:
        """The stream in order, with its tag, as uint8 tensors [buffer_bytes] of which the last one is as long
        as what is left. Waits for each until it is full. May be called again and again, from any thread.

        Raises WeightSyncError when the source cannot be read, or gives no buffer for `stall_seconds`.
        """
        end = 0
        for buffer in self._stream.split(self.manifest.buffer_bytes):
            end += len(buffer)
            self._wait_for(end, timeout_seconds=stall_seconds)
            yield buffer
            with self._changed:
                self._num_sent += len(buffer)

    def wait_for_first_buffer(self, *, timeout_seconds: float) -> None:
        """Wait until there is something to send. Raises WeightSyncError as `buffers` does."""
        end = min(self.manifest.buffer_bytes, self.manifest.stream_bytes)
        self._wait_for(end, timeout_seconds=timeout_seconds)

    def set_aside(self) -> None:
        """Do not use the memory again: somebody may still read it who was given up."""
        self._is_reusable.clear()

    def wait_until_read(self) -> float:
        """Wait until the source is no longer read; returns the seconds that the copy took.

        Raises what reading it raised.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._seconds

    def _wait_for(self, end: int, *, timeout_seconds: float | None) -> None:
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: self._num_ready >= end or self._error is not None, timeout_seconds
            )
            if self._error is not None:
                raise WeightSyncError(f"the trainer's weights cannot be read: {self._error}")
            if not is_there:
                raise WeightSyncError(
                    f"the trainer's own weights come too slowly: nothing to send for {timeout_seconds:g} s"
                )

    def _fill(self, source: WeightSource) -> None:
        start = time.monotonic()
        try:
            digest = StreamDigest(self.key, self.manifest.tensors)
            for entry, (_, tensor) in zip(self.manifest.tensors, read_tensors(source), strict=True):
                for end in self._copy(entry, tensor):
                    digest.update(self._stream[self._num_ready : end])
                    self._mark_ready(end)
            self._stream[-TAG_BYTES:] = torch.frombuffer(bytearray(digest.tag()), dtype=torch.uint8)
            self._seconds = time.monotonic() - start
            self._mark_ready(len(self._stream))
        except BaseException as error:  # handed on by `buffers` and `wait_until_read`
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _copy(self, entry: TensorEntry, tensor: torch.Tensor) -> Iterator[int]:
        """Copy a tensor to its place piece by piece, in the dtype that travels; yields where each ends."""
        target = view_of(entry, self._stream).reshape(-1)
        values = tensor.detach().reshape(-1)
        size = target.element_size()
        for start in range(0, len(values), _PIECE_ELEMENTS):
            piece = values[start : start + _PIECE_ELEMENTS]
            target[start : start + len(piece)].copy_(piece)
            is_last = start + len(piece) == len(values)
            if not is_last:
                yield entry.offset + (start + len(piece)) * size
        self._stream[entry.offset + entry.num_bytes : entry.end].zero_()
        yield entry.end

    def _mark_ready(self, end: int) -> None:
        buffer_bytes, before = self.manifest.buffer_bytes, self._num_ready
        with self._changed:
            self._num_ready = end
            if end // buffer_bytes > before // buffer_bytes or end == len(self._stream):
                self._changed.notify_all()


def _give_back(pool: MemoryPool, memory: Memory, is_reusable: threading.Event) -> None:
    if is_reusable.is_set():
        pool.give_back(memory)
