"""The versions of one job in one store, written by one attempt at a time, each version once for all engines
that read it. An attempt leaves a marker with the job's uid, by which a lower one knows that it is superseded.
"""

import asyncio
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from grpo_api.contract.run_config import JobRef
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.errors import SupersededError, UserError, VolumeFullError
from grpo_runtime.weight_sync.disk.store import MissingError, StoreError, VersionStore
from grpo_runtime.weight_sync.disk.version import (
    FILE_BYTES,
    LATEST,
    MANIFEST,
    DamagedVersionError,
    name_of,
    parse_manifest,
    version_named,
)
from grpo_runtime.weight_sync.disk.version_reader import check_version
from grpo_runtime.weight_sync.disk.version_writer import write_version
from grpo_runtime.weight_sync.interface import ModelFiles, WeightSyncError
from grpo_runtime.weight_sync.sender import read_outcome
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

log = logging.getLogger(__name__)
_MARKER = re.compile(r"attempt-(\d{6,12})")


@dataclass(frozen=True)
class Published:
    """A version that is in the store: its folder, and the tag of its stream."""

    name: str
    tag: bytes


@dataclass
class _Publication:
    """One try to have a copy in the store. `num_bytes` have been written so far; `was_checked` says that the
    files were read again and found to be what was written."""

    version: PolicyVersion
    future: "Future[Published]" = field(default_factory=Future)
    num_bytes: int = 0
    was_checked: bool = False

    def __post_init__(self) -> None:
        # from here on it cannot be cancelled
        self.future.set_running_or_notify_cancel()

    @property
    def has_failed(self) -> bool:
        return self.future.done() and self.future.exception() is not None

    def add(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes


class Publisher:
    """Writes versions, lets LATEST name the newest, and removes those beyond `keep`.

    `model_files` is asked once.
    """

    def __init__(
        self,
        store: VersionStore,
        *,
        job: JobRef,
        attempt: int,
        keep: int,
        model_files: ModelFiles = dict,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._store = store
        self._job = job
        self._markers = AttemptMarkers(store, job=job, attempt=attempt)
        self._keep = keep
        self._ask_model_files = model_files
        self._model_files: Mapping[str, bytes] | None = None
        self._file_bytes = file_bytes
        self._publications: WeakKeyDictionary[HostCopy, _Publication] = WeakKeyDictionary()
        self._num_readers = Counter[str]()
        self._removed: set[str] = set()
        self._superseded: SupersededError | None = None
        self._lock = threading.Lock()
        self._committing = threading.Lock()

    def begin_attempt(self) -> None:
        """Begin this attempt: from now on every lower one is refused. Removes what was never committed.

        Raises SupersededError when a higher attempt has begun, UserError when the store has another job's
        versions, and StoreError and VolumeFullError as the store does.
        """
        self._markers.refuse_when_superseded()
        for name in self._committed():
            try:
                manifest = parse_manifest(self._store.read(f"{name}/{MANIFEST}"), name=name)
            except (MissingError, WeightSyncError) as error:
                log.warning(
                    "weights of an earlier step are damaged, and go when newer ones are there: %s", error
                )
                continue
            if manifest.job.uid != self._job.uid:
                raise UserError(
                    f"{self._store.what} has weights of another job ({manifest.job.name}, uid "
                    f"{manifest.job.uid}): name a folder of this job's own, or empty that one"
                )
        self._markers.place()
        self._store.discard_unfinished()

    def publish(self, copy: HostCopy, version: PolicyVersion) -> None:
        """Begin to write a copy, which may still be filled, as this version. Raises SupersededError once a
        higher attempt has been found."""
        if self._superseded is not None:
            raise self._superseded
        with self._lock:
            publication = self._publications[copy] = _Publication(version)
        self._start(self._write, copy, publication)

    def published(self, copy: HostCopy) -> "Future[Published]":
        """Done once the copy is in the store; fails with WeightSyncError, and SupersededError. A copy that
        could not be written is tried once more for each call. Raises WeightSyncError for one without a
        version."""
        return self._publication(copy).future

    async def wait_until_published(self, copy: HostCopy, *, stall_seconds: float) -> Published:
        """Wait for as long as bytes are written. Raises as `published` fails, and WeightSyncError, which says
        how far it came, when none was written for `stall_seconds`: no engine is to blame for that."""
        publication = self._publication(copy)
        waiting = asyncio.wrap_future(publication.future)
        waiting.add_done_callback(read_outcome)
        num_before = -1
        while not waiting.done():
            if publication.num_bytes == num_before:
                raise WeightSyncError(
                    f"the store is slow: {num_before} of {copy.num_bytes} bytes of weights "
                    f"{publication.version} written, and no more for {stall_seconds:g} s"
                )
            num_before = publication.num_bytes
            await asyncio.wait({waiting}, timeout=stall_seconds)
        return waiting.result()

    def check_again(self, copy: HostCopy) -> None:
        """An engine found the files of the copy damaged: read them in a thread, and write them again if they
        are not what was written. `published` waits for that. Files that were found good are not read once
        more."""
        with self._lock:
            found = self._publications.get(copy)
            if found is None or not found.future.done() or found.has_failed or found.was_checked:
                return
            publication = self._publications[copy] = _Publication(found.version, was_checked=True)
        self._start(self._check, copy, publication, found.future.result())

    @contextmanager
    def being_read(self, copy: HostCopy) -> Iterator[None]:
        """Keep the copy's version for as long as the block runs, however many newer ones there are, and
        whether or not it is written by now. Raises WeightSyncError for one that has been removed."""
        name = name_of(self._publication(copy).version)
        with self._lock:
            if name in self._removed:
                raise WeightSyncError(f"{name} has been removed from the store: there are newer weights")
            self._num_readers[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_readers[name] -= 1

    def _publication(self, copy: HostCopy) -> _Publication:
        with self._lock:
            found = self._publications.get(copy)
            if found is None:
                raise WeightSyncError(
                    "these weights have no version, so that no folder can be named for them"
                )
            if not found.has_failed:
                return found
            again = self._publications[copy] = _Publication(found.version)
        self._start(self._write, copy, again)
        return again

    def _start(self, work: Callable[..., None], *args: object) -> None:
        threading.Thread(target=work, args=args, name="write-weights", daemon=True).start()

    def _write(self, copy: HostCopy, publication: _Publication) -> None:
        name, future = name_of(publication.version), publication.future
        with self._lock:
            self._removed.discard(name)
        try:
            published = self._written(copy, publication, name=name)
        except SupersededError as error:
            self._superseded = error
            self._discard_unfinished(name)
            future.set_exception(error)
        except (StoreError, VolumeFullError) as error:
            self._discard_unfinished(name)
            sentence = f"weights {publication.version} could not be written: {error}"
            future.set_exception(WeightSyncError(sentence))
        except BaseException as error:  # handed on by the future
            self._discard_unfinished(name)
            future.set_exception(error)
        else:
            future.set_result(published)
            self._forget_old(written=name)

    def _written(self, copy: HostCopy, publication: _Publication, *, name: str) -> Published:
        self._markers.refuse_when_superseded()
        if self._model_files is None:
            self._model_files = self._ask_model_files()
        tag = write_version(
            copy,
            store=self._store,
            job=self._job,
            version=publication.version,
            model_files=self._model_files,
            file_bytes=self._file_bytes,
            on_bytes=publication.add,
            # what a higher attempt has removed of it would be missing in the version
            before_commit=self._markers.refuse_when_superseded,
        )
        with self._committing:
            self._markers.refuse_when_superseded()
            self._move_latest(name)
        return Published(name, tag)

    def _check(self, copy: HostCopy, publication: _Publication, published: Published) -> None:
        name = published.name
        try:
            manifest = parse_manifest(self._store.read(f"{name}/{MANIFEST}"), name=name)
            check_version(self._store, name, manifest, on_bytes=publication.add)
        except (MissingError, DamagedVersionError) as error:
            log.warning("%s was damaged after it was written, and is written again: %s", name, error)
            publication.num_bytes, publication.was_checked = 0, False
            self._write(copy, publication)
        except (StoreError, WeightSyncError) as error:
            # a store that cannot be read says nothing about the files
            log.warning("whether %s is damaged could not be found out: %s", name, error)
            publication.was_checked = False
            publication.future.set_result(published)
        except BaseException as error:  # handed on by the future
            publication.future.set_exception(error)
        else:
            publication.future.set_result(published)

    def _discard_unfinished(self, name: str) -> None:
        try:
            self._store.discard_unfinished(name)
        except (StoreError, VolumeFullError) as error:
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
                        if self._num_readers[name] > 0 or name == written:
                            continue
                        self._removed.add(name)
                    self._store.discard(name)
        except (StoreError, VolumeFullError) as error:
            log.warning("weights of earlier steps could not be removed: %s", error)

    def _committed(self) -> list[str]:
        """Oldest first."""
        versions = {name: version_named(name) for name in self._store.folders()}
        known = [(version, name) for name, version in versions.items() if version is not None]
        return [name for _, name in sorted(known)]


class AttemptMarkers:
    """The markers of one job. Markers of a job that used the folder before are ignored, but one that has
    put its own over ours began later."""

    def __init__(self, store: VersionStore, *, job: JobRef, attempt: int) -> None:
        self._store = store
        self._uid = job.uid.encode()
        self._attempt = attempt
        self._own = f"attempt-{attempt:06d}"
        self._is_placed = False

    def place(self) -> None:
        """Refuse every lower attempt from now on, and remove the markers of those. Raises as the store
        does."""
        self._store.put(self._own, self._uid)
        self._is_placed = True
        for attempt, name in self._found():
            if attempt < self._attempt and self._uid_in(name) == self._uid:
                self._store.remove(name)

    def refuse_when_superseded(self) -> None:
        """Raises SupersededError when a higher attempt has begun, or another job, and as the store does."""
        for attempt, name in reversed(self._found()):
            uid = self._uid_in(name)
            if name == self._own and self._is_placed and uid not in (None, self._uid):
                raise SupersededError(
                    f"another job has begun to write weights to {self._store.what}: name a folder of this "
                    "job's own"
                )
            if attempt > self._attempt and uid == self._uid:
                raise SupersededError(
                    f"attempt {attempt} has begun, so attempt {self._attempt} may no longer write weights"
                )

    def _found(self) -> list[tuple[int, str]]:
        matches = (_MARKER.fullmatch(name) for name in self._store.files())
        return sorted((int(match[1]), match[0]) for match in matches if match)

    def _uid_in(self, name: str) -> bytes | None:
        try:
            return self._store.read(name)
        except MissingError:
            # a still higher attempt has removed it, and left its own
            return None
