"""The journal of asynchronous training: groups outlive the step in which they are sampled, and which of them
a step is trained on is recorded before it is trained.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.rollouts.journal.journal import NO_RECORDS, Recorder
from grpo_runtime.rollouts.journal.reader import StepRecords, read_step, step_folders
from grpo_runtime.rollouts.journal.records import Composed, Generated, Scored


class AsyncJournal(Recorder):
    """What this attempt records, and what it replays of lower ones.

    A record is in the file of the step whose groups are being chosen when it is written, so no file has a
    sample of newer weights than those before its step. Steps are replayed from the checkpoint on as long as
    all groups that they were trained on are whole; what was recorded beyond belongs to weights that may be
    others.
    """

    def __init__(
        self,
        folder: Path,
        *,
        job_uid: str,
        attempt: int,
        reward_names: Sequence[str],
        layout: str,
        sampling: int,
        max_staleness: int,
    ) -> None:
        """`max_staleness` is that of the run: a group of which a sample is so many steps old is trained."""
        super().__init__(
            folder,
            job_uid=job_uid,
            attempt=attempt,
            reward_names=reward_names,
            layout=layout,
            sampling=sampling,
        )
        self._max_staleness = max_staleness
        self._step: int | None = None
        """The step whose file is written."""
        self._samples: dict[tuple[int, int], Generated] = {}
        """What lower attempts have left of groups that are not trained, by group and sample."""
        self._scores: dict[int, Sequence[Scored]] = {}
        self._num_restored: Counter[int] = Counter()
        """Samples by group."""

    def begin(self, step: int) -> Composed | None:
        """From now on records are of the step that follows `step` finished ones. Returns which groups a lower
        attempt has trained it on; `restore` fills them."""
        if self._step is None:
            for earlier in range(max(0, step - self._max_staleness), step):
                self._keep(
                    read_step(self._folder, step=earlier, attempt=self._attempt, job_uid=self._job_uid)
                )
        found = self._begin(step)
        self._keep(found)
        self._step = step
        return found.composed

    def restore(self, groups: Sequence[Group]) -> int:
        """Fill groups with what lower attempts have left of them; returns of how many samples that is. Of
        several records of a sample the newest counts, also where an older one was restored before."""
        num_samples = 0
        for group in groups:
            num_samples += self._restore_samples(group)
            if group.is_sampled:
                for record in self._scores.pop(group.number, ()):
                    if record.is_of(group, names=self._reward_names):
                        group.columns = record.columns
                        break
        return num_samples

    def stop_replaying(self, step: int) -> None:
        """Engines sample from `step` finished steps on. What was recorded beyond is removed."""
        self._is_replaying = False
        self._found[step] = NO_RECORDS
        self._forget_after(step)

    def forget_restored(self, group: Group) -> None:
        """What was restored of a group is sampled anew."""
        self._num_restored.pop(group.number, None)

    def composed(self, step: int, record: Composed) -> None:
        """The step is trained on these groups; what is recorded from now on is in the file of the next."""
        assert step == self._step, "a step is composed whose file is not the one that is written"
        ended = (*record.trained, *record.filtered)
        self._num_replayed[step] = sum(self._num_restored.pop(ordinal, 0) for ordinal in ended)
        if not self._is_replaying:
            self._put(step, record)
            self._begin(step + 1)
            self._step = step + 1

    def forget_before(self, step: int | None) -> None:
        """Remove what was recorded before `step`, that of the newest committed checkpoint, but for groups
        that may not be trained yet."""
        if step is None:
            return
        for found, folder in step_folders(self._folder).items():
            if found < step - self._max_staleness:
                self._writer.remove(folder)

    def _step_of(self, group: Group) -> int:
        assert self._step is not None
        return self._step

    def _keep(self, found: StepRecords) -> None:
        self._samples.update(found.generated)
        self._scores.update(found.scored)

    def _restore_samples(self, group: Group) -> int:
        num_finished = num_unfinished = 0
        for sample, request in enumerate(group.requests):
            record = self._samples.pop((group.number, sample), None)
            if record is None or not record.answers(request, sampling=self._sampling):
                continue
            found = record.rollout_of(request)
            if isinstance(found, Rollout) and found.is_aborted:
                group.go_on_from(sample, found)
                num_unfinished += 1
            else:
                num_finished += group.rollouts[sample] is None and isinstance(found, Rollout)
                group.rollouts[sample] = found
            group.columns = None
        self._num_restored[group.number] += num_finished
        return num_finished + num_unfinished
