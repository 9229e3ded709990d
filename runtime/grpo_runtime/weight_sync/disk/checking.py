"""Shows by its digests that a version is what its trainer wrote, without a trainer to ask."""

import hashlib
from collections.abc import Callable

import torch

from grpo_runtime.weight_sync.disk.store import FolderStore, OpenFile, VersionStore
from grpo_runtime.weight_sync.disk.version_manifest import (
    MANIFEST,
    DamagedVersionError,
    StoredFile,
    VersionManifest,
)
from grpo_runtime.weight_sync.disk.version_reader import VersionReader
from grpo_runtime.weight_sync.stream.digest import TAG_BYTES, StreamDigest

_PIECE_BYTES = 8 * 1024 * 1024


def check_version(
    store: VersionStore,
    name: str,
    manifest: VersionManifest,
    *,
    on_bytes: Callable[[int], None] = lambda num_bytes: None,
) -> None:
    """Read every file of a version; `on_bytes` is told how many bytes, piece by piece. Raises
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
