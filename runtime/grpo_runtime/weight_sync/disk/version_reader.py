"""Reads a version back: as the stream that its trainer packed, or file by file, to show by its digests that
it is what the trainer wrote."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch

from grpo_runtime.weight_sync.disk.store import FolderStore, MissingError, OpenFile, StoreError, VersionStore
from grpo_runtime.weight_sync.disk.version import (
    MANIFEST,
    DamagedVersionError,
    StoredFile,
    StoredTensor,
    VersionManifest,
    parse_manifest,
)
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.stream.manifest import WeightManifest
from grpo_runtime.weight_sync.tag import TAG_BYTES, StreamDigest

_PIECE_BYTES = 8 * 1024 * 1024


def open_version(store: VersionStore, name: str) -> VersionManifest:
    """The manifest of a committed version. Raises DamagedVersionError when there is none, and WeightSyncError
    when there is no such store."""
    try:
        text = store.read(f"{name}/{MANIFEST}")
    except MissingError as error:
        raise DamagedVersionError(str(error)) from error
    except StoreError as error:
        raise WeightSyncError(f"weights cannot be read: {error}") from error
    return parse_manifest(text, name=name)


class VersionReader:
    """A version as one stream of bytes, padding and all, with `tag` behind it.

    Every file is read once through, from its first tensor to its last, while the stream passes. A file that
    is missing, or of another length than the manifest says, is an error before anything of it is read.
    """

    def __init__(self, store: VersionStore, name: str, manifest: VersionManifest, *, tag: bytes) -> None:
        """Raises WeightSyncError for a manifest whose tensors do not follow one another in their files."""
        if len(tag) != TAG_BYTES:
            raise WeightSyncError(f"the tag of a stream has {TAG_BYTES} bytes and not {len(tag)}")
        self._store = store
        self._name = name
        self._manifest = manifest
        self._tag = tag
        self.stream: WeightManifest = manifest.stream()
        _require_order(manifest, self.stream)

    def fill(self, buffers: Iterator[memoryview]) -> Iterator[memoryview]:
        """Fill `buffers`, which together are as long as the stream with its tag, one after the other; yields
        each. Raises WeightSyncError, which is a DamagedVersionError where the files are to blame."""
        with ExitStack() as files:
            try:
                pieces = self._pieces(files)
                reading, num_left = next(pieces)
                for buffer in buffers:
                    filled = 0
                    while filled < len(buffer):
                        if num_left == 0:
                            reading, num_left = next(pieces)
                            continue
                        part = buffer[filled : filled + num_left]
                        reading.read_into(part)
                        filled, num_left = filled + len(part), num_left - len(part)
                    yield buffer
            except StopIteration:
                raise DamagedVersionError(f"{self._name} is shorter than the weights announced") from None
            except MissingError as error:
                raise DamagedVersionError(str(error)) from error
            except StoreError as error:
                raise WeightSyncError(f"weights cannot be read: {error}") from error

    def _pieces(self, files: ExitStack) -> Iterator[tuple[OpenFile, int]]:
        """What follows what in the stream: from where, and how many bytes."""
        opened: dict[str, OpenFile] = {}
        zeros = _Zeros()
        for entry, stored in zip(self.stream.tensors, self._manifest.tensors, strict=True):
            if stored.file not in opened:
                opened[stored.file] = self._open(stored, files)
            yield opened[stored.file], entry.num_bytes
            yield zeros, entry.end - entry.offset - entry.num_bytes
        yield _Bytes(self._tag), len(self._tag)

    def _open(self, first: StoredTensor, files: ExitStack) -> OpenFile:
        """A file, at its first tensor."""
        path, known = f"{self._name}/{first.file}", self._manifest.files[first.file]
        reading: OpenFile = files.enter_context(self._store.reading(path))
        if reading.num_bytes != known.num_bytes:
            raise DamagedVersionError(
                f"{self._store.what}/{path} has {reading.num_bytes} bytes and not {known.num_bytes}, as its "
                "manifest says: it was not written to its end, or was changed"
            )
        reading.read_into(memoryview(bytearray(first.offset)))
        return reading


def check_version(
    store: VersionStore,
    name: str,
    manifest: VersionManifest,
    *,
    on_bytes: Callable[[int], None] = lambda num_bytes: None,
) -> None:
    """Read every file of a version; `on_bytes` is called with how many bytes, piece by piece. Raises
    DamagedVersionError for one that differs from the manifest, and StoreError as the store does."""
    for file, known in manifest.files.items():
        with store.reading(f"{name}/{file}") as reading:
            _pass_on(reading, known, what=f"{name}/{file}", to=lambda part: on_bytes(len(part)))


def copy_version(store: VersionStore, name: str, manifest: VersionManifest, *, into: FolderStore) -> None:
    """Copy a version, whose files are checked on the way. Raises as `check_version` does, with nothing
    copied, and VolumeFullError."""
    try:
        into.begin(name)
        for file, known in manifest.files.items():
            with store.reading(f"{name}/{file}") as reading, into.writing(name, file) as sink:
                _pass_on(reading, known, what=f"{name}/{file}", to=sink.write)
    except Exception:
        into.discard(name)
        raise
    into.commit(name, last=MANIFEST, data=manifest.model_dump_json(by_alias=True).encode())


def tag_of(store: VersionStore, name: str, manifest: VersionManifest, *, key: bytes) -> bytes:
    """The tag of a version's stream under `key`. Reads all of it. Raises as `VersionReader` does."""
    reader = VersionReader(store, name, manifest, tag=bytes(TAG_BYTES))
    stream = reader.stream
    digest = StreamDigest(key, stream.tensors)
    buffer = torch.empty(min(_PIECE_BYTES, stream.stream_bytes), dtype=torch.uint8)
    sizes = [
        min(len(buffer), stream.stream_bytes - start) for start in range(0, stream.stream_bytes, len(buffer))
    ]
    num_left = stream.num_bytes
    for part in reader.fill(buffer[:size].numpy().data for size in sizes):
        digest.update(buffer[: min(len(part), num_left)])
        num_left -= min(len(part), num_left)
    return digest.tag()


def _pass_on(reading: OpenFile, known: StoredFile, *, what: str, to: Callable[[memoryview], None]) -> None:
    if reading.num_bytes != known.num_bytes:
        raise DamagedVersionError(f"{what} has {reading.num_bytes} bytes and not {known.num_bytes}")
    digest, piece = hashlib.sha256(), bytearray(min(_PIECE_BYTES, known.num_bytes))
    for start in range(0, known.num_bytes, _PIECE_BYTES):
        part = memoryview(piece)[: known.num_bytes - start]
        reading.read_into(part)
        digest.update(part)
        to(part)
    if digest.hexdigest() != known.sha256:
        raise DamagedVersionError(f"{what} is not what was written: its SHA-256 differs from the manifest's")


def _require_order(manifest: VersionManifest, stream: WeightManifest) -> None:
    ends: dict[str, int] = {}
    for entry, stored in zip(stream.tensors, manifest.tensors, strict=True):
        if stored.file not in manifest.files:
            raise WeightSyncError(f"its manifest does not list {stored.file}, which should have {entry.name}")
        if stored.offset != ends.setdefault(stored.file, stored.offset):
            raise WeightSyncError(f"{entry.name} does not follow the tensor before it in {stored.file}")
        ends[stored.file] = stored.offset + entry.num_bytes
    for name, end in ends.items():
        if end != manifest.files[name].num_bytes:
            raise WeightSyncError(f"the tensors of {name} end at byte {end} and the file does not")


class _Zeros:
    """The padding between tensors."""

    num_bytes = 0

    def read_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes."""
        target[:] = bytes(len(target))


class _Bytes:
    """Bytes that are there."""

    def __init__(self, data: bytes) -> None:
        self.num_bytes = len(data)
        self._left = data

    def read_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes."""
        target[:] = self._left[: len(target)]
        self._left = self._left[len(target) :]
