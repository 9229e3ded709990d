"""What a power cut would leave of a directory, at every moment of a piece of work on it.

The calls that make things durable are observed and passed on; nothing is killed. A file system promises to
keep the content of a file since its last fsync, and the names in a directory since the last fsync of that
directory. Of what came later it may keep all, nothing or any part: `PowerCuts.states` are the worst of these.
"""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

Names = dict[str, int]
"""The entries of a directory: inode by name."""


@dataclass
class _Disk:
    """By inode: names of directories and contents of files, as the last fsync of each saw them."""

    names: dict[int, Names] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class _Rename:
    """A change of names that no fsync of the directories has made durable yet."""

    source: int
    old_name: str
    target: int
    new_name: str
    inode: int


class PowerCuts:
    """Watches work below `root`, and calls `at_each` after every fsync and rename of it.

    What is below `root` at the start is durable.
    """

    def __init__(self, root: Path, *, at_each: Callable[["PowerCuts"], None]) -> None:
        self.num_moments = 0
        self._root = root
        self._at_each = at_each
        self._disk = _Disk()
        self._renames: list[_Rename] = []
        self._held: list[int] = []
        self._is_checking = False
        for folder, _, files in os.walk(root):
            self._keep_names(Path(folder))
            for name in files:
                self._keep_content(Path(folder, name))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Observe the work in the body of a `with` statement."""
        calls = {name: getattr(os, name) for name in ("fsync", "fdatasync", "rename", "replace")}

        def observed(name: str) -> Callable[..., None]:
            def call(*arguments: Any, **options: Any) -> None:
                if self._is_checking:
                    calls[name](*arguments, **options)
                elif name in ("rename", "replace"):
                    self._rename(calls[name], *map(Path, arguments))
                else:
                    calls[name](*arguments, **options)
                    self._sync(Path(f"/proc/self/fd/{arguments[0]}").readlink())

            return call

        try:
            with mock.patch.multiple(os, **{name: observed(name) for name in calls}):
                yield
        finally:
            for descriptor in self._held:
                os.close(descriptor)

    def states(self, into: Path) -> Iterator[Path]:
        """Directories like `root` as it could be after a power cut now."""
        only_synced = self._disk.names
        all_names = {
            folder.stat().st_ino: _entries(folder) for folder in _folders(self._root) if folder.exists()
        }
        alone = [_renamed(only_synced, rename) for rename in self._renames]
        for index, names in enumerate([only_synced, only_synced | all_names, *alone]):
            state = Path(tempfile.mkdtemp(dir=into)) / f"{self.num_moments}-{index}"
            self._write(self._root.stat().st_ino, state, names=names)
            yield state

    def _write(self, inode: int, path: Path, *, names: dict[int, Names]) -> None:
        path.mkdir()
        for name, child in names[inode].items():
            if child in names:
                self._write(child, path / name, names=names)
            else:
                # a file that was never synced has a name and no content
                (path / name).write_bytes(self._disk.contents.get(child, b""))

    def _sync(self, path: Path) -> None:
        if self._root not in (path, *path.parents):
            return
        if path.is_dir():
            self._keep_names(path)
            inode = path.stat().st_ino
            self._renames = [rename for rename in self._renames if rename.target != inode]
        else:
            self._keep_content(path)
        self._moment()

    def _rename(self, call: Callable[[Path, Path], None], source: Path, target: Path) -> None:
        folders = [path.parent.stat().st_ino for path in (source, target)]
        rename = _Rename(folders[0], source.name, folders[1], target.name, source.stat().st_ino)
        call(source, target)
        if self._root in target.parents:
            self._renames.append(rename)
            self._moment()

    def _moment(self) -> None:
        self.num_moments += 1
        self._is_checking = True
        try:
            self._at_each(self)
        finally:
            self._is_checking = False

    def _keep_names(self, folder: Path) -> None:
        self._disk.names[folder.stat().st_ino] = _entries(folder)
        for path in (folder, *folder.iterdir()):
            # so that no new file gets the inode of one that is removed
            self._held.append(os.open(path, os.O_RDONLY))
            if path.is_dir():
                self._disk.names.setdefault(path.stat().st_ino, {})

    def _keep_content(self, path: Path) -> None:
        self._held.append(os.open(path, os.O_RDONLY))
        self._disk.contents[path.stat().st_ino] = path.read_bytes()


def _entries(folder: Path) -> Names:
    return {entry.name: entry.inode() for entry in os.scandir(folder)}


def _folders(root: Path) -> Iterator[Path]:
    yield root
    yield from (path for path in root.rglob("*") if stat.S_ISDIR(path.stat().st_mode))


def _renamed(names: dict[int, Names], rename: _Rename) -> dict[int, Names]:
    """`names` if of all that is not durable only this rename survives."""
    changed = {folder: dict(entries) for folder, entries in names.items()}
    changed.setdefault(rename.source, {}).pop(rename.old_name, None)
    changed.setdefault(rename.target, {})[rename.new_name] = rename.inode
    return changed
