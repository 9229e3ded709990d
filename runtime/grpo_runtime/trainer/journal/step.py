"""A step's samples and rewards: what the journal has is taken from it, and only the rest is done."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from grpo_runtime.rollout.interface import GenerateRequest, Generator, Rollout
from grpo_runtime.trainer.journal.reader import StepRecords
from grpo_runtime.trainer.journal.records import Generated, Record, Scored, Trained
from grpo_runtime.trainer.scoring import Scores, StepScoring

logger = logging.getLogger(__name__)

REPLAYED = "journal/replayed_samples"
CHECKSUM = "journal/weights_checksum"
"""The first 32 bits of the digest: two runs were the same up to the first step in which it differs."""
DIFFERS = "journal/digest_differs"
"""1 where a replayed step ended with other weights than before, and 0 where with the same."""


class Step:
    """A step of a run that keeps no journal."""

    is_recorded = False
    """Whether a journal wants to know the digest of the trained weights."""
    num_replayed = 0
    """Samples that the journal has."""
    needs_engines = True
    """Whether a sample is still to be generated."""

    def __init__(self, requests: Sequence[GenerateRequest], *, step: int) -> None:
        self.step = step
        self._requests = requests

    def more(self, requests: Sequence[GenerateRequest]) -> "Step":
        """Another round of the same step, behind the samples of this one."""
        return Step(requests, step=self.step)

    async def generate(self, generator: Generator, *, scoring: StepScoring) -> list[Rollout]:
        """All samples of the step, in the order of its requests; `scoring` is told of each as it finishes."""
        return await generator.generate(self._requests, on_finished=scoring.finished)

    async def score(self, scoring: StepScoring, rollouts: Sequence[Rollout]) -> Scores:
        """Their rewards."""
        return await scoring.scores(rollouts)

    async def kept(self) -> None:
        """Return when what a journal holds of the step is on disk."""

    def trained(self, digest: str) -> dict[str, float]:
        """Record the digest of the weights after the update; what the step has to say about the journal."""
        return {}


class RecordedStep(Step):
    """A step of a run that keeps a journal."""

    is_recorded = True

    def __init__(
        self,
        requests: Sequence[GenerateRequest],
        *,
        step: int,
        group_size: int,
        reward_names: Sequence[str],
        layout: str,
        sampling: int,
        first_group: int,
        records: StepRecords,
        more: Callable[["RecordedStep", Sequence[GenerateRequest]], "RecordedStep"],
        num_replayed_before: int,
        put: Callable[[Record], None],
        wait: Callable[[], None],
    ) -> None:
        """`records` are those that attempts have left; `put` writes one more, and `wait` returns when all are
        on disk. `first_group` groups of the step came before, of which `num_replayed_before` samples were
        replayed; `more` makes the next round."""
        super().__init__(requests, step=step)
        self._group_size = group_size
        self._reward_names = tuple(reward_names)
        self._layout = layout
        self._sampling = sampling
        self._first_group = first_group
        self._more = more
        self._put, self._wait = put, wait
        self._rollouts = self._replayed(records)
        self._scores = self._found_scores(records)
        self._logged_digest = records.trained.get(layout)
        self.num_replayed = len(self._rollouts)
        self.num_replayed_of_step = num_replayed_before + self.num_replayed

    @property
    def next_group(self) -> int:
        """Groups of the step up to the end of this round."""
        return self._first_group + len(self._requests) // self._group_size

    def more(self, requests: Sequence[GenerateRequest]) -> "RecordedStep":
        """See `Step`."""
        return self._more(self, requests)

    @property
    def needs_engines(self) -> bool:  # type: ignore[override]
        """See `Step`."""
        return len(self._rollouts) < len(self._requests)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to do but to train."""
        return self._scores is not None

    async def generate(self, generator: Generator, *, scoring: StepScoring) -> list[Rollout]:
        """See `Step`. Every sample is written as it finishes."""
        missing = [index for index in range(len(self._requests)) if index not in self._rollouts]

        def keep(number: int, rollout: Rollout) -> None:
            self._keep(missing[number], rollout)
            scoring.finished(missing[number], rollout)

        if missing:
            for index, rollout in self._rollouts.items():
                scoring.finished(index, rollout)
            found = await generator.generate([self._requests[index] for index in missing], on_finished=keep)
            self._rollouts |= zip(missing, found, strict=True)
        return [self._rollouts[index] for index in range(len(self._requests))]

    async def score(self, scoring: StepScoring, rollouts: Sequence[Rollout]) -> Scores:
        """See `Step`."""
        scores = self._scores
        if scores is None:
            scores = await super().score(scoring, rollouts)
            written = Scored.of_scores(
                scores, rollouts, names=self._reward_names, first_group=self._first_group
            )
            self._put(written)
        return scores

    async def kept(self) -> None:
        """See `Step`."""
        await asyncio.to_thread(self._wait)

    def trained(self, digest: str) -> dict[str, float]:
        """See `Step`. A digest that differs from the one logged before is a warning, not an end: the run can
        go on, and its records do not depend on it."""
        self._put(Trained(digest=digest, layout=self._layout))
        metrics = {REPLAYED: float(self.num_replayed_of_step), CHECKSUM: float(int(digest[:8], 16))}
        if self._logged_digest is None:
            return metrics
        differs = digest != self._logged_digest
        if differs:
            logger.warning(
                "step %d was replayed, but its weights (digest %s) are not those that it had before (digest "
                "%s): sums may be in another order on this hardware; the run goes on with these",
                *(self.step + 1, digest, self._logged_digest),
            )
        return {**metrics, DIFFERS: float(differs)}

    def _place(self, index: int) -> tuple[int, int]:
        """The group in the step, and the place in the group, of a sample of this round."""
        group, sample = divmod(index, self._group_size)
        return self._first_group + group, sample

    def _keep(self, index: int, rollout: Rollout) -> None:
        prompt_index, sample_index = self._place(index)
        self._put(
            Generated.of_rollout(
                rollout,
                prompt_index=prompt_index,
                sample_index=sample_index,
                seed=self._requests[index].seed,
                sampling=self._sampling,
            )
        )

    def _replayed(self, records: StepRecords) -> dict[int, Rollout]:
        rollouts = {}
        for index, request in enumerate(self._requests):
            found = records.generated.get(self._place(index))
            if found is not None and found.answers(request, sampling=self._sampling):
                rollouts[index] = found.rollout(request)
        return rollouts

    def _found_scores(self, records: StepRecords) -> Scores | None:
        """The newest scores of exactly these samples, in this place of the step, by these functions."""
        if self.needs_engines:
            return None
        rollouts = [self._rollouts[index] for index in range(len(self._requests))]
        for found in records.scored:
            if found.is_of(rollouts, names=self._reward_names, first_group=self._first_group):
                return found.scores
        return None
