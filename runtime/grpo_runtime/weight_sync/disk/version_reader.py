"""Reads a version back as the stream that its trainer packed."""

from collections.abc import Iterator
from contextlib import ExitStack

from grpo_runtime.weight_sync.disk.store import MissingError, OpenFile, StoreError, VersionStore
from grpo_runtime.weight_sync.disk.version_manifest import (
    MANIFEST,
    DamagedVersionError,
    StoredTensor,
    VersionManifest,
    parse_manifest,
)
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.stream.digest import TAG_BYTES
from grpo_runtime.weight_sync.stream.manifest import WeightManifest


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
        """See `OpenFile`."""
        target[:] = bytes(len(target))


class _Bytes:
    """Bytes that are there."""

    def __init__(self, data: bytes) -> None:
        self.num_bytes = len(data)
        self._left = data

    def read_into(self, target: memoryview) -> None:
        """See `OpenFile`."""
        target[:] = self._left[: len(target)]
        self._left = self._left[len(target) :]
