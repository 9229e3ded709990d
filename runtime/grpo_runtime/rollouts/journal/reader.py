"""What all attempts have left of a step, as the next attempt may use it."""

import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_runtime.rollouts.frames import decode_frames
from grpo_runtime.rollouts.journal.records import Begun, Composed, Generated, Record, Scored, decode_record

logger = logging.getLogger(__name__)

_FILE = re.compile(r"attempt-(\d+)\.journal")
_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class StepRecords:
    """The records of one step that count."""

    generated: Mapping[tuple[int, int], Generated]
    """By group and sample. Of several attempts that have one, that of the highest counts: it is the one
    that may have been trained on, because an attempt samples only what it has not found."""
    scored: Mapping[int, Sequence[Scored]]
    """By group, the highest attempt first."""
    trained: Mapping[str, str]
    """Digest by layout."""
    composed: Composed | None = None
    """That of the highest attempt which has one."""


def step_folder(folder: Path, step: int) -> Path:
    """Where the files of a step are, one for each attempt that worked on it."""
    return folder / f"step-{step:06d}"


def file_of(folder: Path, *, step: int, attempt: int) -> Path:
    """The file of one attempt."""
    return step_folder(folder, step) / f"attempt-{attempt:06d}.journal"


def step_folders(folder: Path) -> dict[int, Path]:
    """The folders that are there, by step."""
    found = ((_STEP.fullmatch(path.name), path) for path in folder.glob("step-*"))
    return {int(match[1]): path for match, path in found if match}


def read_step(folder: Path, *, step: int, attempt: int, job_uid: str) -> StepRecords:
    """What attempts up to `attempt` have left of a step. A damaged file counts up to the damage, which the
    log names; a file of another job or another format does not count."""
    generated: dict[tuple[int, int], Generated] = {}
    scored: defaultdict[int, list[Scored]] = defaultdict(list)
    trained: dict[str, str] = {}
    composed: Composed | None = None
    for path in _files(step_folder(folder, step), up_to=attempt):
        own: dict[tuple[int, int], Generated] = {}
        for record in _records(path, step=step, job_uid=job_uid):
            if isinstance(record, Begun):
                if record.is_fresh:
                    generated, scored, trained, own = {}, defaultdict(list), {}, {}
                    composed = None
            elif isinstance(record, Generated):
                before = own.get((record.group, record.sample))
                if before is None or before.is_unfinished:
                    own[record.group, record.sample] = record
            elif isinstance(record, Scored):
                scored[record.group].insert(0, record)
            elif isinstance(record, Composed):
                # digests before are of other groups
                composed, trained = record, {}
            else:
                trained[record.layout] = record.digest
        generated |= own
    return StepRecords(generated, scored, trained, composed)


def attempts_in(folder: Path) -> dict[int, Path]:
    """The files of a step, by attempt."""
    return {int(match[1]): path for path in folder.glob("*") if (match := _FILE.fullmatch(path.name))}


def _files(folder: Path, *, up_to: int) -> list[Path]:
    """The files of a step, the lowest attempt first."""
    found = attempts_in(folder)
    return [found[attempt] for attempt in sorted(found) if attempt <= up_to]


def _records(path: Path, *, step: int, job_uid: str) -> list[Record]:
    """The records of a file that count."""
    frames, damage = decode_frames(path.read_bytes())
    if damage is not None and damage.is_tail:
        logger.info("%s: the last write was cut off, its %d bytes do not count", path, damage.num_bytes)
    elif damage is not None:
        logger.warning(
            "%s is damaged at byte %d: the %d bytes from there on do not count, "
            "and what they held is done again",
            *(path, damage.offset, damage.num_bytes),
        )
    records: list[Record] = []
    for frame in frames:
        try:
            record = decode_record(frame)
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("%s: a record is not understood (%r): it ends the file", path, error)
            break
        if isinstance(record, Begun) and (record.job_uid, record.step) != (job_uid, step):
            logger.warning("%s is of another job or step: it is left out", path)
            return []
        records.append(record)
    if records and not isinstance(records[0], Begun):
        logger.warning("%s does not say whose it is: it is left out", path)
        return []
    return records
