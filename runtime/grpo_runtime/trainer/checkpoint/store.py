"""Checkpoints that are whole or absent, and attempts that are fenced."""

import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, count
from pathlib import Path

from grpo_runtime.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    SupersededError,
    UserError,
)
from grpo_runtime.storage.files import sync_directory, sync_tree, write_atomically
from grpo_runtime.trainer.checkpoint.manifest import (
    FORMAT,
    MANIFEST,
    UNREADABLE,
    FileEntry,
    Manifest,
    damage_of,
    entry_of,
    read_manifest,
)
from grpo_runtime.trainer.checkpoint.reading import ReadProgress

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
"""The folder of a job's checkpoints in its output directory."""

LATEST = "LATEST"
"""A file with the name of the newest checkpoint, for people and tools; a resume trusts manifests only."""

BEST = "BEST"
"""A file with the name of the checkpoint with the best evaluation, and in its second line the reward of
that. The checkpoint is kept beside the newest ones."""


_DAMAGED = re.compile(r"step-(\d+)\.damaged")


class CheckpointStore:
    """The checkpoints of one job in one directory, written by one attempt at a time."""

    def __init__(self, folder: Path, *, job_uid: str, attempt: int, keep: int) -> None:
        self._folder = folder
        self._job_uid = job_uid
        self._attempt = attempt
        self._keep = keep
        self.set_aside: list[str] = []
        """The damaged checkpoints that this attempt has put aside, each with what is wrong with it."""

    def begin_attempt(self) -> None:
        """Begin this attempt: from now on every lower attempt is refused. Removes unfinished writes.

        Raises SupersededError when a higher attempt has begun.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        sync_directory(self._folder.parent)
        self._refuse_when_fenced()
        write_atomically(self._folder / _marker(self._attempt), "", durable=True)
        for leftover in self._folder.glob(".tmp-*"):
            _remove(leftover)

    def newest(
        self, *, saved_step: int | None = None, reading: ReadProgress | None = None
    ) -> tuple[Path, Manifest] | None:
        """The newest whole checkpoint; newer ones, which are damaged, are renamed out of the way. None when
        none was committed.

        Older ones are not read, which takes minutes for a large model: one that is damaged is found when it
        is needed. `reading` reports meanwhile how much has been read. `saved_step` is that of the highest one
        that the job has saved, as far as others know. Raises CheckpointMissingError when neither it nor a
        newer one is there, nor was put aside, CheckpointCorruptError when some were committed but none is
        whole, and UserError when the directory holds another job's.
        """
        reading = reading or ReadProgress()
        for path, manifest in self._newest_first():
            reading.begin(f"checking the checkpoint of step {manifest.step}", total_bytes=manifest.num_bytes)
            problem = damage_of(path, manifest, on_bytes=reading.add)
            if problem is None:
                self._require_saved(saved_step, found=manifest.step)
                return path, manifest
            self._quarantine(path, problem)
        self._require_saved(saved_step, found=None)
        if (self._folder / LATEST).exists() or any(self._folder.glob("step-*.damaged*")):
            raise CheckpointCorruptError(
                f"checkpoints were committed to {self._folder} but none is whole: "
                "restore one, or empty the directory to start from step 0"
            )
        return None

    def unfinished(self, step: int) -> Path:
        """Where what becomes the checkpoint of `step` is put together, by all ranks that write to it. It is
        made if it is missing; `begin_attempt` has removed what an earlier process of this attempt left."""
        temporary = self._folder / f".tmp-{_name(step)}-{self._attempt}"
        temporary.mkdir(parents=True, exist_ok=True)
        return temporary

    def save(self, step: int, write: Callable[[Path], Mapping[str, FileEntry]]) -> Path:
        """Commit what `write` puts into the directory it is given as the checkpoint of `step`.

        `write` returns entries of files, by path in that directory, which are not read again to hash them.
        Raises SupersededError, leaving nothing behind, when a higher attempt has begun, and UserError when a
        file is missing that another rank has written.
        """
        temporary = self.unfinished(step)
        try:
            self._seal(temporary, step=step, known=write(temporary))
        except FileNotFoundError:
            # what an attempt that begins removes
            self._refuse_when_fenced()
            raise
        try:
            self._refuse_when_fenced()
        except SupersededError:
            shutil.rmtree(temporary)
            raise
        final = self._folder / _name(step)
        if final.exists():
            # of a lower attempt, which computed it once more from an older checkpoint: ours replaces it
            self._discard(final)
        temporary.rename(final)
        sync_directory(self._folder)
        # it is committed: whatever fails from here on, the run continues
        try:
            write_atomically(self._folder / LATEST, f"{final.name}\n", durable=True)
            self._forget_old()
        except OSError as error:
            logger.warning("%s is saved, but what follows a save failed: %s", final.name, error)
        return final

    def mark_best(self, step: int, *, reward: float) -> None:
        """Name the committed checkpoint of `step` as the best, with the reward of its evaluation.

        Raises SupersededError when a higher attempt has begun.
        """
        self._refuse_when_fenced()
        write_atomically(self._folder / BEST, f"{_name(step)}\n{reward!r}\n", durable=True)

    def best(self) -> tuple[int, float] | None:
        """Step and reward of the best checkpoint; None when none is named, or the named one is gone."""
        try:
            name, reward = (self._folder / BEST).read_text().split()
        except FileNotFoundError:
            return None
        if not (self._folder / name).is_dir():
            return None
        return int(name.removeprefix("step-")), float(reward)

    def _seal(self, folder: Path, *, step: int, known: Mapping[str, FileEntry]) -> None:
        sync_tree(folder)
        found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        if lacking := sorted(known.keys() - found.keys()):
            raise UserError(
                f"{lacking[0]} of the checkpoint of step {step} is not there, although another rank has "
                "written it: checkpoint.shared needs a claim that all trainer pods see as one "
                "(ReadWriteMany): name such a claim in checkpoint.claimName, or remove checkpoint.shared"
            )
        files = {name: known.get(name) or entry_of(path) for name, path in sorted(found.items())}
        manifest = Manifest(
            format=FORMAT, job_uid=self._job_uid, attempt=self._attempt, step=step, files=files
        )
        write_atomically(folder / MANIFEST, manifest.model_dump_json(by_alias=True, indent=1), durable=True)

    def _committed(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("step-*") if is_committed(path))

    def _manifests(self, *, on_unreadable: Callable[[Path, str], None]) -> Iterator[tuple[Path, Manifest]]:
        """The committed checkpoints whose manifests can be read, by name. `on_unreadable` gets each other one
        and why."""
        for path in self._committed():
            try:
                manifest = read_manifest(path)
            except UNREADABLE as error:
                on_unreadable(path, f"its manifest cannot be read ({type(error).__name__})")
                continue
            yield path, manifest

    def _newest_first(self) -> list[tuple[Path, Manifest]]:
        """The committed checkpoints whose manifests can be read; others are renamed out of the way."""
        found = []
        for path, manifest in self._manifests(on_unreadable=self._quarantine):
            if manifest.job_uid != self._job_uid:
                raise UserError(
                    f"{self._folder} holds checkpoints of another job (uid {manifest.job_uid}): "
                    "give this job a claim of its own, or empty that directory"
                )
            found.append((path, manifest))
        return _by_age(found)

    def _require_saved(self, step: int | None, *, found: int | None) -> None:
        """Raise CheckpointMissingError when the newest whole checkpoint, that of step `found`, is older than
        the one of `step`, and no damage explains it."""
        if step is None or (found is not None and found >= step):
            return
        damaged = (_DAMAGED.match(path.name) for path in self._folder.glob("step-*.damaged*"))
        if any(int(match[1]) >= step for match in damaged if match):
            return
        newest = "none" if found is None else f"that of step {found} as the newest"
        raise CheckpointMissingError(
            f"the job has saved a checkpoint of step {step}, and {self._folder} has {newest}: the volume was "
            "emptied, made again or restored to an older state"
        )

    def _quarantine(self, path: Path, problem: str) -> None:
        target = _free(path.with_name(f"{path.name}.damaged-{self._attempt}"))
        logger.warning("checkpoint %s is damaged: %s; it is now %s", path.name, problem, target.name)
        self.set_aside.append(f"{path.name} ({problem})")
        path.rename(target)
        sync_directory(self._folder)

    def _refuse_when_fenced(self) -> None:
        newest = max((_attempt_of(path) for path in self._folder.glob("attempt-*")), default=0)
        if newest > self._attempt:
            raise SupersededError(
                f"attempt {newest} has begun, so attempt {self._attempt} may no longer write checkpoints"
            )

    def _forget_old(self) -> None:
        newest_first = _by_age(self._manifests(on_unreadable=_leave_to_a_resume))
        best = self.best()
        for path, _ in newest_first[self._keep :]:
            if best is None or path.name != _name(best[0]):
                self._discard(path)

    def _discard(self, path: Path) -> None:
        """Remove a checkpoint so that no half of it is ever seen."""
        doomed = _free(path.with_name(f".tmp-{path.name}-discarded"))
        path.rename(doomed)
        _remove(doomed)


def _by_age(found: Iterable[tuple[Path, Manifest]]) -> list[tuple[Path, Manifest]]:
    """The newest first."""
    return sorted(found, key=lambda each: age_of(each[1]), reverse=True)


def _leave_to_a_resume(path: Path, problem: str) -> None:
    """A resume renames it out of the way."""
    logger.warning("checkpoint %s is damaged: %s", path.name, problem)


def _remove(path: Path) -> None:
    """Remove a folder that nobody needs. What cannot be removed now, as a file on NFS that somebody reads, is
    tried again when an attempt begins."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        logger.warning("%s cannot be removed now: %s", path, error)


def _free(path: Path) -> Path:
    """`path`, or where that is taken the first free one of its kind."""
    others = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(place for place in chain((path,), others) if not place.exists())


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _marker(attempt: int) -> str:
    return f"attempt-{attempt:06d}"


def _attempt_of(marker: Path) -> int:
    return int(marker.name.removeprefix("attempt-"))


def is_committed(path: Path) -> bool:
    """Whether a path in a folder of checkpoints is, by its name, one that was committed, and neither an
    unfinished nor a damaged one."""
    return re.fullmatch(r"step-\d+", path.name) is not None


def age_of(manifest: Manifest) -> tuple[int, int]:
    """Sort key of one job's checkpoints, the greatest for the newest: an attempt that was fenced off may have
    left a higher step."""
    return manifest.attempt, manifest.step
