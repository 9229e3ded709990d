"""The versions of one job in one store, written by one attempt at a time, each version once for all engines
that read it."""

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from grpo_api.contract.run_config import JobRef
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.errors import SupersededError, UserError, VolumeFullError
from grpo_runtime.weight_sync.disk.checking import check_version
from grpo_runtime.weight_sync.disk.layout import FILE_BYTES
from grpo_runtime.weight_sync.disk.store import StoreError, VersionStore
from grpo_runtime.weight_sync.disk.version_manifest import (
    LATEST,
    MANIFEST,
    name_of,
    parse_manifest,
    version_named,
)
from grpo_runtime.weight_sync.disk.version_writer import write_version
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

log = logging.getLogger(__name__)

ModelFiles = Callable[[], Mapping[str, bytes]]
"""Gives the files that make a folder of weights a model of Hugging Face, by name."""
_MARKER = re.compile(r"attempt-(\d{6,12})")


@dataclass(frozen=True)
class Published:
    """A version that is in the store: its folder, and the tag of its stream."""

    name: str
    tag: bytes


class Publisher:
    """Writes versions, lets LATEST name the newest, and removes those beyond `keep`.

    `beside` is asked once.
    """

    def __init__(
        self,
        store: VersionStore,
        *,
        job: JobRef,
        attempt: int,
        keep: int,
        beside: ModelFiles = dict,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._store = store
        self._job = job
        self._attempt = attempt
        self._keep = keep
        self._make_beside = beside
        self._beside: Mapping[str, bytes] | None = None
        self._file_bytes = file_bytes
        self._versions: WeakKeyDictionary[HostCopy, PolicyVersion] = WeakKeyDictionary()
        self._published: WeakKeyDictionary[HostCopy, Future[Published]] = WeakKeyDictionary()
        self._read = Counter[str]()
        self._lock = threading.Lock()
        self._committing = threading.Lock()

    def begin_attempt(self) -> None:
        """Begin this attempt: from now on every lower one is refused. Removes what was never committed.

        Raises SupersededError when a higher attempt has begun, UserError when the store has another job's
        versions, and StoreError and VolumeFullError as the store does.
        """
        self._refuse_when_fenced()
        for name in self._committed():
            try:
                manifest = parse_manifest(self._store.read(f"{name}/{MANIFEST}"), name=name)
            except WeightSyncError as error:
                log.warning(
                    "weights of an earlier step are damaged, and go when newer ones are there: %s", error
                )
                continue
            if manifest.job.uid != self._job.uid:
                raise UserError(
                    f"{self._store.what} has weights of another job ({manifest.job.name}, uid "
                    f"{manifest.job.uid}): name a folder of this job's own, or empty that one"
                )
        self._store.put(_marker(self._attempt), b"")
        self._store.discard_unfinished()

    def publish(self, copy: HostCopy, version: PolicyVersion) -> None:
        """Begin to write a copy, which may still be filled, as this version."""
        with self._lock:
            self._versions[copy] = version
        self.published(copy)

    def published(self, copy: HostCopy) -> "Future[Published]":
        """Done once the copy is in the store; fails with WeightSyncError. A copy that could not be written is
        tried once more for each call. Raises WeightSyncError for one without a version."""
        with self._lock:
            future = self._published.get(copy)
            if future is not None and not (future.done() and future.exception() is not None):
                return future
            version = self._versions.get(copy)
            if version is None:
                raise WeightSyncError(
                    "these weights have no version, so that no folder can be named for them"
                )
            future = self._published[copy] = Future()
        thread = threading.Thread(
            target=self._write, args=(copy, version, future), name="write-weights", daemon=True
        )
        thread.start()
        return future

    def doubt(self, copy: HostCopy) -> None:
        """An engine could not read the copy: look at its files, and let the next call of `published` write
        them again if they are not what was written. Reads all of them."""
        with self._lock:
            future = self._published.get(copy)
        if future is None or not future.done() or future.exception() is not None:
            return
        name = future.result().name
        try:
            manifest = parse_manifest(self._store.read(f"{name}/{MANIFEST}"), name=name)
            check_version(self._store, name, manifest)
        except (StoreError, WeightSyncError) as error:
            log.warning("%s was damaged after it was written, and will be written again: %s", name, error)
            with self._lock:
                if self._published.get(copy) is future:
                    del self._published[copy]

    @contextmanager
    def being_read(self, name: str) -> Iterator[None]:
        """Keep this version for as long as the block runs, however many newer ones there are."""
        with self._lock:
            self._read[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._read[name] -= 1

    def _write(self, copy: HostCopy, version: PolicyVersion, future: "Future[Published]") -> None:
        name = name_of(version)
        try:
            if self._beside is None:
                self._beside = self._make_beside()
            tag = write_version(
                copy,
                store=self._store,
                job=self._job,
                version=version,
                beside=self._beside,
                file_bytes=self._file_bytes,
            )
            with self._committing:
                self._refuse_when_fenced()
                self._move_latest(name)
        except (StoreError, VolumeFullError, SupersededError) as error:
            self._discard(name)
            future.set_exception(WeightSyncError(f"weights {version} could not be written: {error}"))
        except BaseException as error:  # handed on by the future
            self._discard(name)
            future.set_exception(error)
        else:
            future.set_result(Published(name, tag))
            self._forget_old(written=name)

    def _discard(self, name: str) -> None:
        try:
            self._store.discard(name)
        except StoreError as error:
            log.warning("what was written of %s could not be removed: %s", name, error)

    def _move_latest(self, name: str) -> None:
        committed = self._committed()
        if committed and committed[-1] == name:
            self._store.put(LATEST, f"{name}\n".encode())

    def _forget_old(self, *, written: str) -> None:
        """What cannot be removed now is tried again after the next version."""
        try:
            with self._committing:
                for name in self._committed()[: -self._keep]:
                    with self._lock:
                        is_read = self._read[name] > 0
                    if not is_read and name != written:
                        self._store.discard(name)
        except StoreError as error:
            log.warning("weights of earlier steps could not be removed: %s", error)

    def _committed(self) -> list[str]:
        """Oldest first."""
        versions = {name: version_named(name) for name in self._store.folders()}
        known = [(version, name) for name, version in versions.items() if version is not None]
        return [name for _, name in sorted(known)]

    def _refuse_when_fenced(self) -> None:
        found = (_MARKER.fullmatch(name) for name in self._store.files())
        newest = max((int(match[1]) for match in found if match), default=0)
        if newest > self._attempt:
            raise SupersededError(
                f"attempt {newest} has begun, so attempt {self._attempt} may no longer write weights"
            )


def _marker(attempt: int) -> str:
    return f"attempt-{attempt:06d}"
