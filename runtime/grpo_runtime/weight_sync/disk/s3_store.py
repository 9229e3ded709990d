"""A prefix in a bucket of an S3-compatible store, as a store of versions, through obstore.

A bucket has no folders to rename: a version is there once its last file, the manifest, is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import obstore
from obstore.store import S3Store

from grpo_runtime.errors import UserError
from grpo_runtime.export.destination import DestinationUnreachableError
from grpo_runtime.export.s3 import NOT_FOUND, PART_BYTES, BucketErrors
from grpo_runtime.weight_sync.disk.store import MissingError, StoreError, StoreRefusedError
from grpo_runtime.weight_sync.disk.version import version_named

_READ_BYTES = 8 * 1024 * 1024
_PARTS_AT_ONCE = 4
"""Parts of a file that are on their way while the next one is filled."""


class BucketStore:
    """Keys below a prefix; see `VersionStore`. `last` is the file that makes a folder whole.

    Only folders with the name of a version, right below the prefix, are looked into: other keys may be
    anybody's. When the store has refused something, it is opened anew for the next request: its credentials
    may be temporary, and renewed by then.
    """

    def __init__(self, open_bucket: Callable[[], S3Store], *, errors: BucketErrors, last: str) -> None:
        """Raises as `open_bucket` does, which reads the credentials."""
        self._open_bucket = open_bucket
        self._opened: S3Store | None = open_bucket()
        self._errors_of = errors
        self._last = last
        self.what = errors.what

    def folders(self) -> list[str]:
        """Names of committed folders."""
        return [folder for folder in self._versions() if self._last in self._files_in(folder)]

    def files(self) -> list[str]:
        """Names of the files beside the folders."""
        return self._files_in(None)

    def read(self, path: str) -> bytes:
        """A small file, by `NAME` or `FOLDER/NAME`."""
        with self._errors(path):
            return bytes(obstore.get(self._bucket, path).bytes())

    def put(self, name: str, data: bytes) -> None:
        """Replace a small file beside the folders, in one step. A store takes an object as a whole."""
        with self._errors(name):
            obstore.put(self._bucket, name, data, use_multipart=False)

    @contextmanager
    def reading(self, path: str) -> "Iterator[_ObjectReading]":
        """A file of a committed folder."""
        with self._errors(path):
            found = obstore.get(self._bucket, path)
            num_bytes, parts = found.meta["size"], iter(found.stream(min_chunk_size=_READ_BYTES))

        def next_part() -> bytes | None:
            with self._errors(path):
                part = next(parts, None)
                return None if part is None else bytes(part)

        yield _ObjectReading(next_part, num_bytes=num_bytes, what=f"{self.what}/{path}")

    def begin(self, folder: str) -> None:
        """Make an unfinished folder, empty. A bucket has no folders that could be made."""

    @contextmanager
    def writing(self, folder: str, name: str) -> "Iterator[_ObjectSink]":
        """A file of an unfinished folder, which is there for good when the block ends. The object is seen
        when all of it is there, and never when the block fails."""
        path = f"{folder}/{name}"
        with self._errors(path):
            writer = obstore.open_writer(
                self._bucket, path, buffer_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )

        def write(data: bytes) -> None:
            with self._errors(path):
                writer.write(data)

        yield _ObjectSink(write)
        with self._errors(path):
            writer.close()

    def commit(self, folder: str, *, last: str, data: bytes) -> None:
        """Let the folder be seen, with the file `last`, which makes it whole."""
        self.put(f"{folder}/{last}", data)

    def discard(self, folder: str) -> None:
        """Remove a folder, committed or not. First the file that makes the folder whole."""
        with self._errors(folder):
            for name in sorted(self._files_in(folder), key=lambda name: name != self._last):
                obstore.delete(self._bucket, f"{folder}/{name}")

    def discard_unfinished(self, folder: str | None = None) -> None:
        """Remove what was never committed of a folder, or of all versions."""
        for each in self._versions():
            if folder in (None, each) and self._last not in self._files_in(each):
                self.discard(each)

    def remove(self, name: str) -> None:
        """Remove a small file beside the folders."""
        with self._errors(name):
            obstore.delete(self._bucket, name)

    @property
    def _bucket(self) -> S3Store:
        """Raises as `open_bucket` does."""
        # threads may ask at the same time
        bucket = self._opened
        if bucket is None:
            bucket = self._opened = self._open_bucket()
        return bucket

    def _versions(self) -> list[str]:
        """Names of the folders of versions, committed or not."""
        with self._errors("its keys"):
            prefixes = obstore.list_with_delimiter(self._bucket)["common_prefixes"]
        return sorted(name for prefix in prefixes if version_named(name := prefix.rstrip("/")) is not None)

    def _files_in(self, folder: str | None) -> list[str]:
        """Names of the objects right in a folder, or beside the folders."""
        with self._errors("its keys"):
            found = obstore.list_with_delimiter(self._bucket, prefix=folder)["objects"]
        return sorted(entry["path"].rpartition("/")[2] for entry in found)

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            with self._errors_of.translated(known=NOT_FOUND):
                yield
        except NOT_FOUND as error:
            raise MissingError(f"{self.what} has no {path}") from error
        except UserError as error:
            self._opened = None
            raise StoreRefusedError(f"{path}: {error}") from error
        except DestinationUnreachableError as error:
            raise StoreError(f"{path}: {error}") from error


class _ObjectSink:
    """An object that is being written, as a `Sink`."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write

    def write(self, data: memoryview) -> None:
        """Add bytes to its end."""
        self._write(bytes(data))


class _ObjectReading:
    """An object that is read, as an `OpenFile`."""

    def __init__(self, next_part: Callable[[], bytes | None], *, num_bytes: int, what: str) -> None:
        self.num_bytes = num_bytes
        self._next_part = next_part
        self._what = what
        self._left = memoryview(b"")

    def read_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes."""
        filled = 0
        while filled < len(target):
            if not len(self._left):
                part = self._next_part()
                if part is None:
                    raise StoreError(f"{self._what} ends before its last tensor")
                self._left = memoryview(part)
            taken = self._left[: len(target) - filled]
            target[filled : filled + len(taken)] = taken
            filled, self._left = filled + len(taken), self._left[len(taken) :]
