"""The journal of a run: it records what is sampled, scored and trained, and has it after a restart."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.rollouts.journal.reader import (
    StepRecords,
    attempts_in,
    file_of,
    read_step,
    step_folders,
)
from grpo_runtime.rollouts.journal.records import Begun, Composed, Generated, Record, Scored, Trained
from grpo_runtime.rollouts.journal.writer import JournalWriter

logger = logging.getLogger(__name__)

JOURNAL = "journal"
"""Its folder, beside the checkpoints."""
REPLAYED = "journal/replayed_samples"
CHECKSUM = "journal/weights_checksum"
"""The first 32 bits of the digest: two runs were the same up to the first step in which it differs."""
DIFFERS = "journal/digest_differs"
"""1 where a replayed step ended with other weights than before, and 0 where with the same."""
NO_RECORDS = StepRecords({}, {}, {})


class NoJournal:
    """The journal of a run that has none, and of groups that belong in none."""

    is_stored = False
    """Whether records are stored."""

    def restore(self, groups: Sequence[Group]) -> int:
        """It has nothing of them."""
        return 0

    def sampled(self, group: Group, sample: int, *, so_far: Rollout | None = None) -> None:
        """Nothing is written."""

    def scored(self, group: Group) -> None:
        """Nothing is written."""

    async def wait_until_stored(self) -> None:
        """Nothing is left to write."""

    def begin(self, step: int) -> None:
        """It has nothing of the step."""

    def stop_replaying(self, step: int) -> None:
        """Nothing was replayed."""

    def forget_restored(self, group: Group) -> None:
        """Nothing was restored."""

    def composed(self, step: int, record: Composed) -> None:
        """Nothing is written."""

    def trained(self, step: int, digest: str) -> dict[str, float]:
        """It has nothing to say."""
        return {}

    def forget_before(self, step: int | None) -> None:
        """Nothing was stored."""

    def close(self) -> None:
        """Nothing is open."""

    def finish(self, *, timeout_seconds: float) -> None:
        """Nothing is left to write."""


class Recorder(ABC):
    """What an attempt writes in its journal, whichever way it trains."""

    is_stored = True

    def __init__(
        self,
        folder: Path,
        *,
        job_uid: str,
        attempt: int,
        reward_names: Sequence[str],
        layout: str,
        sampling: int,
    ) -> None:
        """`layout` says how the weights are spread over the ranks, as in `records.Trained`; `sampling` is the
        checksum of how completions are sampled."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._job_uid = job_uid
        self._attempt = attempt
        self._reward_names = tuple(reward_names)
        self._layout = layout
        self._sampling = sampling
        self._writer = JournalWriter(folder)
        self._is_replaying = True
        self._found: dict[int, StepRecords] = {}
        """Records of steps that are begun and not trained."""
        self._num_replayed: Counter[int] = Counter()

    def sampled(self, group: Group, sample: int, *, so_far: Rollout | None = None) -> None:
        """Write a sample that is finished or given up, or what there is of it, `so_far`. May be called in any
        thread, and never waits for a disk."""
        record = Generated.of_group(group, sample, sampling=self._sampling, so_far=so_far)
        self._put(self._step_of(group), record)

    def scored(self, group: Group) -> None:
        """Write the rewards of a group."""
        self._put(self._step_of(group), Scored.of_group(group, names=self._reward_names))

    async def wait_until_stored(self) -> None:
        """Return when everything that was written is on disk."""
        await asyncio.to_thread(self._writer.wait)

    def trained(self, step: int, digest: str) -> dict[str, float]:
        """Write the digest of the weights after the update of a step; what the step has to say about the
        journal. A digest that differs from the one before is a warning, not an end: the run can continue, and
        its records do not depend on it."""
        self._put(step, Trained(digest=digest, layout=self._layout))
        before = self._found.pop(step, NO_RECORDS).trained.get(self._layout)
        num_replayed = self._num_replayed.pop(step, 0)
        metrics = {REPLAYED: float(num_replayed), CHECKSUM: float(int(digest[:8], 16))}
        if before is None:
            return metrics
        differs = digest != before
        if differs:
            logger.warning(
                "step %d was replayed, but its weights (digest %s) are not those that it had before (digest "
                "%s): sums may be in another order on this hardware; the run continues with these",
                *(step + 1, digest, before),
            )
        return {**metrics, DIFFERS: float(differs)}

    def close(self) -> None:
        """Write what is left to write."""
        self._writer.close()

    def finish(self, *, timeout_seconds: float) -> None:
        """Write what is left to write, for so long, in a run that ends for another reason."""
        self._writer.finish(timeout_seconds=timeout_seconds)

    @abstractmethod
    def _step_of(self, group: Group) -> int:
        """The step whose file has the records of a group."""

    def _begin(self, step: int) -> StepRecords:
        """Begin the file of a step; returns what lower attempts have left of it that is replayed."""
        self._found[step] = (
            read_step(self._folder, step=step, attempt=self._attempt, job_uid=self._job_uid)
            if self._is_replaying
            else NO_RECORDS
        )
        begun = Begun(
            job_uid=self._job_uid, attempt=self._attempt, step=step, is_fresh=not self._is_replaying
        )
        self._put(step, begun)
        return self._found[step]

    def _forget_after(self, step: int) -> None:
        """Remove what was recorded beyond a step of which something is done anew: no later attempt may take
        it for what follows. A higher attempt that has begun keeps what it has."""
        for found, folder in step_folders(self._folder).items():
            if found > step and max(attempts_in(folder), default=0) <= self._attempt:
                self._writer.remove(folder)

    def _put(self, step: int, record: Record) -> None:
        path = file_of(self._folder, step=step, attempt=self._attempt)
        self._writer.put(path, record.frame())


class Journal(Recorder):
    """What this attempt records, and what it replays of lower ones.

    Steps are replayed one after the other from the checkpoint on, up to the first that is not whole: what was
    recorded beyond it belongs to weights that may be others.
    """

    def restore(self, groups: Sequence[Group]) -> int:
        """Fill groups of one step with what lower attempts have left of them; returns how many samples that
        are. A step may come in several calls, with other groups each time."""
        step = groups[0].step
        if step not in self._found:
            self._begin(step)
        found = self._found[step]
        for group in groups:
            self._restore_samples(group, found)
            self._restore_rewards(group, found)
        num_samples = sum(len(group.finished) for group in groups)
        self._num_replayed[step] += num_samples
        # one that is left out may have samples that were being made at the end
        is_whole = all(group.is_scored or (group.is_sampled and group.is_left_out) for group in groups)
        if self._is_replaying and not is_whole:
            self._forget_after(step)
        self._is_replaying = self._is_replaying and is_whole
        if num_samples:
            logger.info(
                "step %d: replayed %d samples of %d from the journal%s",
                *(step + 1, num_samples, sum(len(group.requests) for group in groups)),
                " with their rewards" if is_whole else "",
            )
        return num_samples

    def forget_before(self, step: int | None) -> None:
        """Remove what was recorded before `step`, that of the newest committed checkpoint: no attempt begins
        there any more. Groups that are not trained yet keep the records of their step."""
        if step is None:
            return
        for found, folder in step_folders(self._folder).items():
            if found < step and found not in self._found:
                self._writer.remove(folder)

    def _step_of(self, group: Group) -> int:
        return group.step

    def _restore_samples(self, group: Group, found: StepRecords) -> None:
        for sample, request in enumerate(group.requests):
            record = found.generated.get((group.number, sample))
            if record is not None and record.answers(request, sampling=self._sampling):
                group.rollouts[sample] = record.rollout_of(request)

    def _restore_rewards(self, group: Group, found: StepRecords) -> None:
        """The newest rewards of exactly these samples by these functions."""
        if not group.is_sampled:
            return
        for record in found.scored.get(group.number, ()):
            if record.is_of(group, names=self._reward_names):
                group.columns = record.columns
                return
