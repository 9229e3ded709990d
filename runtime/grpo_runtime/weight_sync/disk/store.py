"""Where versions are kept: what the backend asks of a store, and a folder as a store."""

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from grpo_runtime.storage.files import sync_directory, write_atomically
from grpo_runtime.storage.paths import link_out_of
from grpo_runtime.storage.volume_errors import volume_errors_named
from grpo_runtime.weight_sync.disk.version import version_named

_UNFINISHED = ".tmp-"
_DISCARDED = "-discarded"
_FIX = "remove what is not needed, lower weightSync.disk.keep, or give weightSync.disk.to a larger claim"


class StoreError(Exception):
    """The store cannot be reached, or does not do what it is asked; the message names it and the fix."""


class MissingError(StoreError):
    """The store is well and does not have the file."""


class StoreRefusedError(StoreError):
    """The store answers that it will not do it for us: another try does not help."""


class Sink(Protocol):
    """A file that is being written."""

    def write(self, data: memoryview) -> None:
        """Add bytes to its end."""
        ...


class OpenFile(Protocol):
    """A file that is read from its beginning on."""

    @property
    def num_bytes(self) -> int:
        """Length of the whole file."""
        ...

    def read_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes. Raises StoreError when the file ends before."""
        ...


class VersionStore(Protocol):
    """Folders of files. What is written to an unfinished folder is seen by nobody before `commit`.

    Every method is blocking, and raises StoreError, or VolumeFullError where no space is left.
    """

    @property
    def what(self) -> str:
        """Field and address, for messages."""
        ...

    def folders(self) -> list[str]:
        """Names of committed folders."""
        ...

    def files(self) -> list[str]:
        """Names of the files beside the folders."""
        ...

    def read(self, path: str) -> bytes:
        """A small file, by `NAME` or `FOLDER/NAME`. Raises MissingError when there is none."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Replace a small file beside the folders, in one step."""
        ...

    def reading(self, path: str) -> AbstractContextManager[OpenFile]:
        """A file of a committed folder. Raises MissingError when there is none."""
        ...

    def begin(self, folder: str) -> None:
        """Make an unfinished folder, empty. Once it is removed nothing can be written to it."""
        ...

    def writing(self, folder: str, name: str) -> AbstractContextManager[Sink]:
        """A file of an unfinished folder, which is there for good when the block ends."""
        ...

    def commit(self, folder: str, *, last: str, data: bytes) -> None:
        """Let the folder be seen, with the file `last`, which makes it whole. One of that name that was
        committed before stays until then."""
        ...

    def discard(self, folder: str) -> None:
        """Remove a folder, committed or not. Harmless when there is none."""
        ...

    def discard_unfinished(self, folder: str | None = None) -> None:
        """Remove what was never committed of a folder, or of all versions. What has no name of a version is
        not ours."""
        ...

    def remove(self, name: str) -> None:
        """Remove a small file beside the folders. Harmless when there is none."""
        ...


class FolderStore:
    """A folder of a file system; see `VersionStore`. A version is committed by renaming its folder."""

    def __init__(self, root: Path, *, what: str | None = None) -> None:
        self.root = root
        self.what = what or str(root)

    def folders(self) -> list[str]:
        """Names of committed folders."""
        return sorted(path.name for path in self._entries() if path.is_dir())

    def files(self) -> list[str]:
        """Names of the files beside the folders."""
        return sorted(path.name for path in self._entries() if path.is_file())

    def read(self, path: str) -> bytes:
        """A small file, by `NAME` or `FOLDER/NAME`."""
        with self._errors(path):
            return self._inside(path).read_bytes()

    def put(self, name: str, data: bytes) -> None:
        """Replace a small file beside the folders, in one step."""
        with self._errors(name):
            self.root.mkdir(parents=True, exist_ok=True)
            write_atomically(self.root / name, data, durable=True)

    @contextmanager
    def reading(self, path: str) -> "Iterator[_FileReading]":
        """A file of a committed folder."""
        with self._errors(path):
            descriptor = os.open(self._inside(path), os.O_RDONLY)
        try:
            yield _FileReading(descriptor, what=f"{self.what}/{path}")
        finally:
            os.close(descriptor)

    def begin(self, folder: str) -> None:
        """Make an unfinished folder, empty."""
        with self._errors(folder):
            self.root.mkdir(parents=True, exist_ok=True)
            _remove(self._unfinished(folder))
            self._unfinished(folder).mkdir()

    @contextmanager
    def writing(self, folder: str, name: str) -> "Iterator[_FileSink]":
        """A file of an unfinished folder, which is there for good when the block ends."""
        with (
            self._errors(f"{folder}/{name}"),
            (self._unfinished(folder) / name).open("wb", buffering=0) as file,
        ):
            yield _FileSink(file.fileno())
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())

    def commit(self, folder: str, *, last: str, data: bytes) -> None:
        """Let the folder be seen, with the file `last`, which makes it whole."""
        unfinished = self._unfinished(folder)
        with self._errors(folder):
            write_atomically(unfinished / last, data, durable=True)
            before = _set_aside(self.root / folder)
            unfinished.rename(self.root / folder)
            sync_directory(self.root)
            shutil.rmtree(before, ignore_errors=True)

    def discard(self, folder: str) -> None:
        """Remove a folder, committed or not. No half of a version is ever seen."""
        with self._errors(folder):
            _remove(self._unfinished(folder))
            _remove(self.root / folder)

    def discard_unfinished(self, folder: str | None = None) -> None:
        """Remove what was never committed of a folder, or of all versions."""
        with self._errors("what was never committed"):
            for leftover in self.root.glob(f"{_UNFINISHED}*"):
                name = leftover.name.removeprefix(_UNFINISHED).removesuffix(_DISCARDED)
                if name == folder or (folder is None and version_named(name) is not None):
                    _remove(leftover)

    def remove(self, name: str) -> None:
        """Remove a small file beside the folders."""
        with self._errors(name):
            (self.root / name).unlink(missing_ok=True)

    def _inside(self, path: str) -> Path:
        """A file to read. Raises StoreError for a link out of the folder."""
        if (outside := link_out_of(self.root, self.root / path)) is not None:
            raise StoreError(f"{self.what}: {path} is a link to {outside}, which is not in it")
        return self.root / path

    def _unfinished(self, folder: str) -> Path:
        return self.root / f"{_UNFINISHED}{folder}"

    def _entries(self) -> list[Path]:
        with self._errors("its entries"):
            if not self.root.is_dir():
                return []
            return [path for path in self.root.iterdir() if not path.name.startswith(".")]

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            with volume_errors_named(self.root, fix=_FIX):
                yield
        except FileNotFoundError as error:
            raise MissingError(f"{self.what} has no {path}") from error
        except OSError as error:
            raise StoreError(f"{self.what}: {path}: {error.strerror or error}") from error


def _set_aside(folder: Path) -> Path:
    """Give a folder another name in one step, by which nobody reads it or writes to it; returns that."""
    name = folder.name.removeprefix(_UNFINISHED).removesuffix(_DISCARDED)
    doomed = folder.with_name(f"{_UNFINISHED}{name}{_DISCARDED}")
    if folder != doomed:
        shutil.rmtree(doomed, ignore_errors=True)
        if folder.is_dir():
            folder.rename(doomed)
    return doomed


def _remove(folder: Path) -> None:
    doomed = _set_aside(folder)
    if doomed.is_dir():
        shutil.rmtree(doomed)


class _FileSink:
    """A file that is being written, as a `Sink`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: memoryview) -> None:
        """Add bytes to its end."""
        written = 0
        while written < len(data):
            written += os.write(self._descriptor, data[written:])


class _FileReading:
    """A file that is read, as an `OpenFile`."""

    def __init__(self, descriptor: int, *, what: str) -> None:
        self._descriptor = descriptor
        self._what = what
        self.num_bytes = os.fstat(descriptor).st_size

    def read_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes."""
        filled = 0
        while filled < len(target):
            try:
                num_read = os.readv(self._descriptor, [target[filled:]])
            except OSError as error:
                raise StoreError(f"{self._what} cannot be read: {error.strerror or error}") from error
            if num_read == 0:
                raise StoreError(f"{self._what} ends before its last tensor")
            filled += num_read
