"""Shows by its digests that a version is what its trainer wrote, without a trainer to ask."""

import hashlib

import torch

from grpo_runtime.weight_sync.disk.store import FolderStore, Reading, Sink, VersionStore
from grpo_runtime.weight_sync.disk.version_manifest import MANIFEST, StoredFile, VersionManifest
from grpo_runtime.weight_sync.disk.version_reader import VersionReader
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.stream.digest import TAG_BYTES, StreamDigest

_PIECE_BYTES = 8 * 1024 * 1024


def check_version(store: VersionStore, name: str, manifest: VersionManifest) -> None:
    """Read every file of a version. Raises WeightSyncError for one that differs from the manifest, and
    StoreError as the store does."""
    for file, known in manifest.files.items():
        with store.reading(f"{name}/{file}") as reading:
            _pass_on(reading, known, what=f"{name}/{file}", to=None)


def copy_version(store: VersionStore, name: str, manifest: VersionManifest, *, into: FolderStore) -> None:
    """Copy a version, whose files are checked on the way. Raises as `check_version` does, with nothing
    copied, and VolumeFullError."""
    try:
        for file, known in manifest.files.items():
            with store.reading(f"{name}/{file}") as reading, into.writing(name, file) as sink:
                _pass_on(reading, known, what=f"{name}/{file}", to=sink)
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


def _pass_on(reading: Reading, known: StoredFile, *, what: str, to: Sink | None) -> None:
    if reading.num_bytes != known.num_bytes:
        raise WeightSyncError(f"{what} has {reading.num_bytes} bytes and not {known.num_bytes}")
    digest, piece = hashlib.sha256(), bytearray(min(_PIECE_BYTES, known.num_bytes))
    for start in range(0, known.num_bytes, _PIECE_BYTES):
        part = memoryview(piece)[: known.num_bytes - start]
        reading.read_into(part)
        digest.update(part)
        if to is not None:
            to.write(part)
    if digest.hexdigest() != known.sha256:
        raise WeightSyncError(f"{what} is not what was written: its SHA-256 differs from the manifest's")
