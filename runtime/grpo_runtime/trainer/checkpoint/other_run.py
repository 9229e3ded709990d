"""A checkpoint of another run, as `resumeFrom` names it. It is read, and nothing is changed where it is."""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grpo_api.model import ApiModel
from grpo_api.source import parse_source
from grpo_api.v1alpha1.spec import ResumeFromSpec, ResumeLoad
from grpo_runtime.errors import CheckpointCorruptError, UserError
from grpo_runtime.storage.files import write_atomically
from grpo_runtime.storage.paths import path_of, whereabouts
from grpo_runtime.trainer.checkpoint.manifest import (
    FORMAT,
    MANIFEST,
    UNREADABLE,
    Manifest,
    damage_of,
    read_manifest,
)
from grpo_runtime.trainer.checkpoint.reading import ReadProgress
from grpo_runtime.trainer.checkpoint.store import CHECKPOINTS, age_of, is_committed

logger = logging.getLogger(__name__)

RESUMED_FROM = "resumed-from.json"
"""File in the output directory that names the checkpoint of another run that this one began with."""


@dataclass(frozen=True)
class OtherCheckpoint:
    """A whole checkpoint of another run, and what is taken of it."""

    folder: Path
    manifest: Manifest
    load: ResumeLoad


class ChosenCheckpoint(ApiModel):
    """Which checkpoint a run began with: an attempt without one of its own begins with the same."""

    job_uid: str
    attempt: int
    step: int

    def is_(self, manifest: Manifest) -> bool:
        """Whether it is the checkpoint with this manifest."""
        return (manifest.job_uid, manifest.attempt, manifest.step) == (self.job_uid, self.attempt, self.step)


def find_other_checkpoint(
    resume: ResumeFromSpec, *, volumes_dir: Path, output_dir: Path, reading: ReadProgress | None = None
) -> OtherCheckpoint:
    """The checkpoint that this run began with in an earlier attempt, or else the newest whole one, or the one
    of `resumeFrom.step`. Which one it is stays in `output_dir`. `reading` reports meanwhile how much has been
    read.

    Raises UserError when it is not there, and CheckpointCorruptError when it is not whole.
    """
    assert resume.source is not None  # what makes a RunConfig finds the checkpoints of a job
    source = parse_source(resume.source)
    place = path_of(source, volumes_dir=volumes_dir, field="resumeFrom.source")
    folders = list(_checkpoints_in(place))
    if not folders:
        raise UserError(
            f"resumeFrom: there is no checkpoint at {whereabouts(source, place)}: name the output directory "
            f"of a job, its {CHECKPOINTS}, or one checkpoint, or remove resumeFrom"
        )
    kept = output_dir / RESUMED_FROM
    chosen = ChosenCheckpoint.model_validate_json(kept.read_text()) if kept.exists() else None
    folder, manifest = _newest_whole(
        folders,
        step=chosen.step if chosen else resume.step,
        chosen=chosen,
        reading=reading or ReadProgress(),
    )
    found = ChosenCheckpoint(job_uid=manifest.job_uid, attempt=manifest.attempt, step=manifest.step)
    output_dir.mkdir(parents=True, exist_ok=True)
    write_atomically(kept, found.model_dump_json(by_alias=True, indent=1), durable=True)
    return OtherCheckpoint(folder, manifest, resume.load)


def _checkpoints_in(place: Path) -> Iterator[Path]:
    """The committed checkpoints at a place: one, or those of a job."""
    if (place / MANIFEST).is_file():
        yield place
        return
    folder = place / CHECKPOINTS if (place / CHECKPOINTS).is_dir() else place
    yield from (path for path in sorted(folder.glob("step-*")) if is_committed(path))


def _newest_whole(
    folders: list[Path], *, step: int | None, chosen: ChosenCheckpoint | None, reading: ReadProgress
) -> tuple[Path, Manifest]:
    """The newest checkpoint that is whole; of `step`, and the `chosen` one, where these are given."""
    readable, damaged = [], []
    for folder in folders:
        try:
            manifest = read_manifest(folder)
        except UNREADABLE as error:
            damaged.append((folder, f"its manifest cannot be read ({type(error).__name__})"))
            continue
        if step in (None, manifest.step) and (chosen is None or chosen.is_(manifest)):
            readable.append((folder, manifest))
    for folder, manifest in sorted(readable, key=lambda found: age_of(found[1]), reverse=True):
        if manifest.format != FORMAT:
            raise UserError(
                f"resumeFrom: {folder} has format {manifest.format}, and this image reads {FORMAT}: use an "
                "image of the release that wrote it"
            )
        what = f"checking the checkpoint of step {manifest.step} of the job that this one resumes from"
        reading.begin(what, total_bytes=manifest.num_bytes)
        problem = damage_of(folder, manifest, on_bytes=reading.add)
        if problem is None:
            for path, why in damaged:
                logger.warning("resumeFrom: checkpoint %s is damaged and left out: %s", path, why)
            return folder, manifest
        damaged.append((folder, problem))
    relevant = [(path, why) for path, why in damaged if step is None or _may_be_of(path, step)]
    if relevant:
        path, why = relevant[0]
        raise CheckpointCorruptError(
            f"resumeFrom: no checkpoint that fits is whole; {path} is damaged: {why}: name another one"
        )
    names = ", ".join(folder.name for folder in folders)
    fix = "bring back the one that this run began with" if chosen else "name one of them, or no step"
    raise UserError(f"resumeFrom: there is no checkpoint of step {step}, but {names}: {fix}")


def _may_be_of(folder: Path, step: int) -> bool:
    """Whether a damaged checkpoint is, by its name, that of `step`."""
    named = re.fullmatch(r"step-(\d+)", folder.name)
    return named is None or int(named[1]) == step
