"""Appends records to journal files in a thread of its own, and syncs as many as have come at a time."""

import logging
import os
import queue
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from grpo_runtime.rollouts.frames import Frame, decode_frames, encode_frame
from grpo_runtime.storage.files import sync_directory
from grpo_runtime.storage.volume_errors import volume_errors_named

logger = logging.getLogger(__name__)

Item = tuple[Path, bytes | None]
"""What to append to a file, or None to remove a folder."""


class JournalWriter:
    """Writes records in the order in which they are put. `put` may be called in any thread, and never waits
    for a disk.

    What the disk refuses is raised by `wait`: VolumeFullError where no space is left.
    """

    def __init__(self, folder: Path, *, sync: Callable[[int], None] = os.fsync) -> None:
        """`folder` is on the volume that errors name; `sync` makes what was written to a file descriptor
        durable."""
        self._folder = folder
        self._sync = sync
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._num_put = 0
        self._num_durable = 0
        self._error: Exception | None = None
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, path: Path, frame: Frame) -> None:
        """Append a record to the file at `path`, soon."""
        self._put(path, encode_frame(frame))

    def remove(self, folder: Path) -> None:
        """Remove a folder of files, soon: after what was put before, so that no write brings it back."""
        self._put(folder, None)

    def wait(self) -> None:
        """Return when everything that was put is on disk."""
        with self._changed:
            target = self._num_put
            self._changed.wait_for(lambda: self._error is not None or self._num_durable >= target)
            self._raise_error()

    def close(self) -> None:
        """Write what was put, and end the thread."""
        self._queue.put(None)
        self._thread.join()
        with self._changed:
            self._raise_error()

    def finish(self, *, timeout_seconds: float) -> None:
        """Write what was put, for so long, and end the thread, in a run that ends for another reason. What
        the disk refuses is a warning then."""
        self._queue.put(None)
        self._thread.join(timeout_seconds)
        with self._changed:
            num_left, error = self._num_put - self._num_durable, self._error
        if num_left:
            logger.warning("the last %d records of the journal may not be on disk: %s", num_left, error)

    def _put(self, path: Path, data: bytes | None) -> None:
        with self._changed:
            self._num_put += 1
            self._queue.put((path, data))

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        is_open = True
        try:
            while is_open:
                taken = [self._queue.get()]
                while not self._queue.empty():
                    taken.append(self._queue.get())
                # a record may come behind the end: a thread that samples may still finish one
                is_open = None not in taken
                items = [item for item in taken if item is not None]
                with volume_errors_named(self._folder.parent):
                    self._execute(items)
                with self._changed:
                    self._num_durable += len(items)
                    self._changed.notify_all()
            self._close_file()
        except Exception as error:
            # for the thread that trains, which must not continue with what is not on disk
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _execute(self, items: list[Item]) -> None:
        for path, data in items:
            if data is None:
                self._close_file()
                _remove(path)
                continue
            if path != self._path:
                self._close_file()
                self._file, self._path = _open(path), path
            assert self._file is not None
            self._file.write(data)
        self._sync_file()

    def _sync_file(self) -> None:
        if self._file is not None:
            self._file.flush()
            self._sync(self._file.fileno())

    def _close_file(self) -> None:
        if self._file is None:
            return
        file, self._file, self._path = self._file, None, None
        with file:
            file.flush()
            self._sync(file.fileno())


def _open(path: Path) -> BinaryIO:
    """The file at `path` to append to; a record that was cut off at its end is removed, so that what follows
    it can be read."""
    is_new = not path.exists()
    if is_new:
        path.parent.mkdir(parents=True, exist_ok=True)
    else:
        _, damage = decode_frames(path.read_bytes())
        if damage is not None:
            os.truncate(path, damage.offset)
    file = path.open("ab")
    if is_new:
        for folder in (path.parent, path.parent.parent):
            sync_directory(folder)
    return file


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        # an attempt that was fenced off may write there; the next checkpoint tries again
        logger.warning("%s of the journal is not removed: %s", folder, error)
