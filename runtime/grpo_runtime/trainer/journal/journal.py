"""The journal of a run as its loop uses it: begin a step, forget what a checkpoint holds."""

import logging
from collections.abc import Sequence
from pathlib import Path

from grpo_runtime.rollout.interface import GenerateRequest
from grpo_runtime.trainer.journal.reader import StepRecords, attempts_in, file_of, read_step, step_folders
from grpo_runtime.trainer.journal.records import Begun, Record
from grpo_runtime.trainer.journal.step import RecordedStep, Step
from grpo_runtime.trainer.journal.writer import JournalWriter

logger = logging.getLogger(__name__)

JOURNAL = "journal"
"""Its folder, beside the checkpoints."""
_NOTHING = StepRecords({}, (), {})


class NoJournal:
    """Of a run that keeps none."""

    def begin(self, step: int, requests: Sequence[GenerateRequest]) -> Step:
        """The step as the loop does it."""
        return Step(requests, step=step)

    def forget_before(self, step: int | None) -> None:
        """Nothing was kept."""

    def close(self) -> None:
        """Nothing is open."""

    def finish(self, *, timeout_seconds: float) -> None:
        """Nothing is left to write."""


class Journal:
    """What this attempt records, and what it replays of lower ones.

    Steps are replayed one after the other from the checkpoint on, up to the first that is not whole: what was
    recorded beyond it belongs to weights that may be others.
    """

    def __init__(
        self,
        folder: Path,
        *,
        job_uid: str,
        attempt: int,
        group_size: int,
        reward_names: Sequence[str],
        layout: str,
        sampling: int,
    ) -> None:
        """`layout` says how the weights are spread over the ranks: see `records.Trained`. `sampling` is the
        checksum of how completions are sampled."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._job_uid = job_uid
        self._attempt = attempt
        self._group_size = group_size
        self._reward_names = reward_names
        self._layout = layout
        self._sampling = sampling
        self._writer = JournalWriter(folder)
        self._is_replaying = True

    def begin(self, step: int, requests: Sequence[GenerateRequest]) -> RecordedStep:
        """The step with what is left of it."""
        records = _NOTHING
        if self._is_replaying:
            records = read_step(self._folder, step=step, attempt=self._attempt, job_uid=self._job_uid)
        begun = Begun(
            job_uid=self._job_uid, attempt=self._attempt, step=step, is_fresh=not self._is_replaying
        )
        self._put(step, begun)
        return self._round(step, requests, records=records)

    def _round(
        self,
        step: int,
        requests: Sequence[GenerateRequest],
        *,
        records: StepRecords,
        before: RecordedStep | None = None,
    ) -> RecordedStep:
        """A round of a step; `before` is the one before it."""
        recorded = RecordedStep(
            requests,
            step=step,
            group_size=self._group_size,
            reward_names=self._reward_names,
            layout=self._layout,
            sampling=self._sampling,
            first_group=before.next_group if before else 0,
            records=records,
            more=lambda last, requests: self._round(step, requests, records=records, before=last),
            num_replayed_before=before.num_replayed_of_step if before else 0,
            put=lambda record: self._put(step, record),
            wait=self._writer.wait,
        )
        if self._is_replaying and not recorded.is_whole:
            self._forget_after(step)
        self._is_replaying = self._is_replaying and recorded.is_whole
        if recorded.num_replayed:
            logger.info(
                "step %d: replayed %d samples of %d from the journal%s",
                *(step + 1, recorded.num_replayed, len(requests)),
                " with their rewards" if recorded.is_whole else "",
            )
        return recorded

    def forget_before(self, step: int | None) -> None:
        """Remove what was recorded before `step`, that of the newest committed checkpoint: no attempt begins
        there any more."""
        if step is None:
            return
        for found, folder in step_folders(self._folder).items():
            if found < step:
                self._writer.remove(folder)

    def _forget_after(self, step: int) -> None:
        """Remove what was recorded beyond a step of which something is done anew: no later attempt may take
        it for what follows. A higher attempt that has begun keeps what it has."""
        for found, folder in step_folders(self._folder).items():
            if found > step and max(attempts_in(folder), default=0) <= self._attempt:
                self._writer.remove(folder)

    def close(self) -> None:
        """Write what is left to write."""
        self._writer.close()

    def finish(self, *, timeout_seconds: float) -> None:
        """Write what is left to write, for so long, in a run that ends for another reason."""
        self._writer.finish(timeout_seconds=timeout_seconds)

    def _put(self, step: int, record: Record) -> None:
        path = file_of(self._folder, step=step, attempt=self._attempt)
        frame = record.frame() if isinstance(record, Begun) else record.frame(step=step)
        self._writer.put(path, frame)
