"""What a checkpoint says about itself: its files with their digests."""

from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from grpo_api.model import ApiModel
from grpo_runtime.storage.files import sha256_of
from grpo_runtime.storage.paths import link_out_of

MANIFEST = "manifest.json"
FORMAT = 1


class FileEntry(ApiModel):
    """One file of a checkpoint."""

    num_bytes: int
    sha256: str


class Manifest(ApiModel):
    """Written last: a checkpoint without it, or that differs from it, was never committed or is damaged."""

    format: int
    job_uid: str
    attempt: int
    step: int
    files: dict[str, FileEntry]

    @property
    def num_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(entry.num_bytes for entry in self.files.values())


UNREADABLE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError, ValidationError)
"""What `read_manifest` raises for a checkpoint that is not whole. Any other OSError says something of the
volume and nothing of the checkpoint."""


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises one of UNREADABLE where it is not whole, and OSError."""
    return Manifest.model_validate_json((folder / MANIFEST).read_text())


def entry_of(path: Path, *, on_bytes: Callable[[int], None] = lambda _: None) -> FileEntry:
    """Size and digest of a file, which is read for it; `on_bytes` as `sha256_of` has it."""
    return FileEntry(num_bytes=path.stat().st_size, sha256=sha256_of(path, on_bytes=on_bytes))


def damage_of(
    folder: Path, manifest: Manifest, *, on_bytes: Callable[[int], None] = lambda _: None
) -> str | None:
    """How a checkpoint differs from its manifest, for which every file is read; None when it is whole.
    `on_bytes` is called with how many bytes each read has added."""
    for name, entry in manifest.files.items():
        file = folder / name
        if link_out_of(folder, file) is not None:
            return f"{name} is a link out of the checkpoint"
        if not file.is_file() or entry_of(file, on_bytes=on_bytes) != entry:
            return f"{name} is missing or differs from the manifest"
    return None
