"""Writes the trainer's copy of all weights as a version, while the copy is being made."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

from grpo_api.contract.run_config import JobRef
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.weight_sync.disk.store import Sink, VersionStore
from grpo_runtime.weight_sync.disk.version import (
    FILE_BYTES,
    INDEX_FILE,
    MANIFEST,
    SCHEMA_VERSION,
    StoredFile,
    StoredTensor,
    TensorFile,
    VersionManifest,
    index_of,
    name_of,
    tensor_files,
)
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

_PIECE_BYTES = 8 * 1024 * 1024
"""Hashed and written at a time."""


def write_version(
    copy: HostCopy,
    *,
    store: VersionStore,
    job: JobRef,
    version: PolicyVersion,
    model_files: Mapping[str, bytes],
    before_commit: Callable[[], None],
    on_bytes: Callable[[int], None],
    file_bytes: int = FILE_BYTES,
) -> bytes:
    """Write and commit a version; returns the tag of its stream. `model_files` are those that make a folder
    of weights a model, by name; `on_bytes` is called with how many bytes of weights were written, piece by
    piece. No more of the weights is held than the copy has.

    Raises StoreError and VolumeFullError as the store does, WeightSyncError as the copy, and what
    `before_commit` raises.
    """
    name = name_of(version)
    files = tensor_files(copy.manifest, file_bytes=file_bytes)
    stored: dict[str, StoredFile] = {}
    others = dict(model_files)
    if len(files) > 1:
        others[INDEX_FILE] = json.dumps(index_of(files), indent=1).encode()
    store.begin(name)
    for other, data in others.items():
        with _Writing(store, name, other) as writing:
            writing.write(memoryview(data))
        stored[other] = writing.described()
    tag = _write_tensors(copy, files, store=store, name=name, stored=stored, on_bytes=on_bytes)
    manifest = VersionManifest(
        schema_version=SCHEMA_VERSION,
        job=job,
        attempt=version.attempt,
        step=version.step,
        tensors=_stored_tensors(copy, files),
        files=stored,
    )
    before_commit()
    store.commit(name, last=MANIFEST, data=manifest.model_dump_json(by_alias=True, indent=1).encode())
    return tag


def _write_tensors(
    copy: HostCopy,
    files: tuple[TensorFile, ...],
    *,
    store: VersionStore,
    name: str,
    stored: dict[str, StoredFile],
    on_bytes: Callable[[int], None],
) -> bytes:
    """Write all tensors of the stream in its order; returns its tag. `stored` gets each file."""
    file_of = {entry.name: file for file in files for entry in file.tensors}
    stream = _Stream(copy)
    with ExitStack() as unfinished:
        opened: dict[str, tuple[ExitStack, _Writing]] = {}
        for entry in copy.manifest.tensors:
            file = file_of[entry.name]
            if file.name not in opened:
                closing = unfinished.enter_context(ExitStack())
                opened[file.name] = closing, closing.enter_context(_Writing(store, name, file.name))
                opened[file.name][1].write(memoryview(file.header))
            closing, writing = opened[file.name]
            for part in stream.take(entry.num_bytes):
                writing.write(part)
                on_bytes(len(part))
            stream.skip(entry.end - entry.offset - entry.num_bytes)
            if entry == file.tensors[-1]:
                closing.close()
                stored[file.name] = writing.described()
    return stream.rest()


def _stored_tensors(copy: HostCopy, files: tuple[TensorFile, ...]) -> tuple[StoredTensor, ...]:
    places = {tensor: (file.name, offset) for file in files for tensor, offset in file.offsets().items()}
    return tuple(
        StoredTensor(
            name=entry.name,
            dtype=entry.dtype,
            shape=entry.shape,
            file=places[entry.name][0],
            offset=places[entry.name][1],
        )
        for entry in copy.manifest.tensors
    )


class _Writing:
    """A file that is hashed while it is written."""

    def __init__(self, store: VersionStore, folder: str, name: str) -> None:
        self._context: AbstractContextManager[Sink] = store.writing(folder, name)
        self._digest = hashlib.sha256()
        self._num_bytes = 0

    def __enter__(self) -> "_Writing":
        self._sink = self._context.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._context.__exit__(kind, error, traceback)

    def write(self, data: memoryview) -> None:
        """Add bytes to the end of the file."""
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            self._digest.update(piece)
            self._sink.write(piece)
            self._num_bytes += len(piece)

    def described(self) -> StoredFile:
        """Size and digest of what was written."""
        return StoredFile(num_bytes=self._num_bytes, sha256=self._digest.hexdigest())


class _Stream:
    """The bytes of a copy in order, which waits for each buffer until it is full."""

    def __init__(self, copy: HostCopy) -> None:
        self._buffers = copy.buffers()
        self._left = memoryview(b"")

    def take(self, num_bytes: int) -> Iterator[memoryview]:
        """The next bytes, in parts."""
        while num_bytes > 0:
            if not len(self._left):
                self._left = next(self._buffers).numpy().data
            part, self._left = self._left[:num_bytes], self._left[num_bytes:]
            num_bytes -= len(part)
            yield part

    def skip(self, num_bytes: int) -> None:
        """Leave out the next bytes."""
        for _ in self.take(num_bytes):
            pass

    def rest(self) -> bytes:
        """All bytes that are left."""
        found = bytes(self._left)
        self._left = memoryview(b"")
        return found + b"".join(bytes(buffer.numpy().data) for buffer in self._buffers)
