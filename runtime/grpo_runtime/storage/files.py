"""Writes files so that a reader sees a whole one or none, even if the writer is killed."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

_CHUNK_BYTES = 8 << 20


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Replace `path` by `content` in one step: a reader sees the old file or the new one.

    `durable` also survives a power cut: the file and its directory are synced to disk.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync_directory(path.parent)


def read_if_there(path: Path) -> bytes | None:
    """The content of a file; None where there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """An empty folder for the block to fill, which then takes the place of `path`; the one before stays until
    the new one is complete, and the new one survives a power cut."""
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    sync_tree(temporary)
    shutil.rmtree(path, ignore_errors=True)
    temporary.rename(path)
    sync_directory(path.parent)


def sync_tree(path: Path) -> None:
    """Make the directory `path` and everything below it survive a power cut."""
    for found in path.rglob("*"):
        if found.is_dir():
            sync_directory(found)
        else:
            _sync_file(found)
    sync_directory(path)


def _sync_file(path: Path) -> None:
    """Make the content of a file survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make renames and new names in the directory `path` survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path, *, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    """The digest of a file, which is read for it, as hexadecimal digits. `on_bytes` is called with how many
    bytes each read has added."""
    digest, chunk = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while num_read := file.readinto(chunk):
            digest.update(chunk[:num_read])
            on_bytes(num_read)
    return digest.hexdigest()
