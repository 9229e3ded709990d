"""The newest version of a store as a folder of this container, checked.

It is copied from a claim too, and not read there: a job keeps few versions, and does not wait for readers.
"""

import secrets
from pathlib import Path

from grpo_runtime.weight_sync.disk.checking import copy_version, tag_of
from grpo_runtime.weight_sync.disk.store import FolderStore, MissingError, VersionStore
from grpo_runtime.weight_sync.disk.stored_stream import StoredStream
from grpo_runtime.weight_sync.disk.version_manifest import (
    LATEST,
    MANIFEST,
    VersionManifest,
    parse_manifest,
    version_named,
)
from grpo_runtime.weight_sync.disk.version_reader import VersionReader
from grpo_runtime.weight_sync.interface import Info, WeightSyncError
from grpo_runtime.weight_sync.stream.digest import KEY_BYTES, TAG_BYTES
from grpo_runtime.weight_sync.stream.update_message import UpdateInfo


class CheckedVersions:
    """Versions of `source` in `local`, a folder that they are copied to."""

    def __init__(self, source: VersionStore, *, local: FolderStore) -> None:
        self._source = source
        self.local = local
        self._started_on: str | None = None

    def newest(self) -> str | None:
        """The name that LATEST has; None before the first version. Raises StoreError as the store does, and
        WeightSyncError for what is no name of a version."""
        try:
            name = self._source.read(LATEST).decode(errors="replace").strip()
        except MissingError:
            return None
        if version_named(name) is None:
            raise WeightSyncError(f"{LATEST} of {self._source.what} names no version")
        return name

    def fetch(self, name: str) -> VersionManifest:
        """Copy a version, whose files are checked on the way. Of those copied before none stays,
        but for what `start_on` keeps.

        Raises WeightSyncError for one that is not what its trainer wrote, StoreError where it cannot be read,
        and VolumeFullError.
        """
        manifest = parse_manifest(self._source.read(f"{name}/{MANIFEST}"), name=name)
        for other in self.local.folders():
            if other == self._started_on:
                for weights in self.folder_of(other).glob("*.safetensors"):
                    weights.unlink()
            elif version_named(other) is not None:
                self.local.discard(other)
        copy_version(self._source, name, manifest, into=self.local)
        return manifest

    def start_on(self, name: str) -> None:
        """Keep the files beside the weights of this version, whatever is fetched later: the server that is
        started on it goes on to read its configuration when the engine has its weights."""
        self._started_on = name

    def folder_of(self, name: str) -> Path:
        """Where a version is."""
        return self.local.root / name

    def update_info(self, name: str, manifest: VersionManifest, *, sender: str) -> Info:
        """The verb `update` for a version that was brought: as a trainer's, with a tag that is computed
        here. Raises WeightSyncError."""
        key = secrets.token_bytes(KEY_BYTES)
        tag = tag_of(self.local, name, manifest, key=key)
        stream = VersionReader(self.local, name, manifest, tag=bytes(TAG_BYTES)).stream
        connection = StoredStream(sender=sender, name=name, tag=tag)
        info = UpdateInfo(manifest=stream, key=key.hex(), connection=str(connection))
        return info.model_dump(mode="json", exclude={"abort", "changes"})
