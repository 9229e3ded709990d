"""Writes files so that a reader sees a whole one or none, even if the writer is killed."""

import os
from pathlib import Path


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
