"""Groups that are begun ahead of the steps that train them. Each is sampled and scored by itself, and a place
that becomes free is filled again, within the bound on staleness.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from grpo_runtime.algorithm.advantages import differing_groups
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.report.waiting import still_ahead_message, unscored_message
from grpo_runtime.rollouts.collect import Source, score_group
from grpo_runtime.rollouts.failures import FailuresInARow
from grpo_runtime.rollouts.group import Group, whole_rewards_of
from grpo_runtime.rollouts.interface import EngineError, FunctionFailedError, Generation, GivenUp, Rollout
from grpo_runtime.rollouts.journal.async_journal import AsyncJournal
from grpo_runtime.rollouts.journal.journal import NoJournal
from grpo_runtime.rollouts.scoring import Scorer
from grpo_runtime.rollouts.staleness import StalenessBound

logger = logging.getLogger(__name__)

FAILURES_OF_A_GROUP = (EngineError, FunctionFailedError)
"""What costs a group its place, and no other group."""


@dataclass(kw_only=True, eq=False)
class Outstanding:
    """A group that is begun and not trained."""

    group: Group
    served: int
    """Finished steps of the oldest weights that engines had when it was begun."""

    @property
    def ordinal(self) -> int:
        """Its prompt's place among those of the run."""
        return self.group.number

    @property
    def version(self) -> int:
        """Finished steps of the weights that sampled its oldest token; of a group with missing samples, of
        the oldest weights that may yet do so."""
        rollouts, is_sampled = self.group.found_so_far()
        found = [
            span.version.step
            for rollout in rollouts
            for sequence in rollout.sequences
            for span in sequence.versions
        ]
        return min(found if is_sampled and found else [self.served, *found])


@dataclass(kw_only=True)
class Ended:
    """The groups that have ended since a step took its own, by what became of them."""

    trained: list[Outstanding] = field(default_factory=list)
    """What the next step is trained on, in the order of finishing; empty until it takes them."""
    filtered: list[Outstanding] = field(default_factory=list)
    """Scored, and left out by dynamic sampling."""
    failed: list[Outstanding] = field(default_factory=list)
    """Those that could not be sampled, or of which too many samples were given up."""
    dropped: list[Outstanding] = field(default_factory=list)
    """Cancelled, because they would have become too old."""


@dataclass(frozen=True, kw_only=True)
class AheadOptions:
    """How far groups are begun ahead, and which of them count."""

    bound: StalenessBound
    total_steps: int
    drops_stale: bool
    """Whether groups that are due are cancelled rather than waited for."""
    is_planned: bool = False
    """Whether a step is trained on the next groups in the order of their prompts."""
    max_rounds: int | None
    """With dynamic sampling, how many times promptsPerStep groups are sampled for a step at most; None
    without."""
    advantages: AdvantageOptions

    @property
    def most_filtered(self) -> float:
        """So many groups may teach nothing before a step takes what it has."""
        return float("inf") if self.max_rounds is None else self.max_rounds * self.bound.groups_per_step


class GroupsAhead:
    """The outstanding groups of a run. It lives in the thread of the rollouts; `waits_for` may be called in
    any."""

    def __init__(
        self,
        options: AheadOptions,
        *,
        draw: Callable[[int], Group],
        give_back: Callable[[Sequence[int]], None],
        source: Source,
        scorer: Scorer,
        journal: AsyncJournal | NoJournal,
        failures: FailuresInARow,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`draw` makes the group of the next prompt, begun after so many finished steps; `give_back` lets
        prompts be drawn again, by their ordinals."""
        self._options = options
        self._bound = options.bound
        self._draw = draw
        self._give_back = give_back
        self._source = source
        self._scorer = scorer
        self._journal = journal
        self._failures = failures
        self._clock = clock
        self._outstanding: dict[int, Outstanding] = {}
        """By ordinal."""
        self._finished: list[Outstanding] = []
        """Those that are scored, in the order of finishing."""
        self._ended = Ended()
        """Since the last step took its own."""
        self._tasks: dict[Outstanding, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._served: int | None = None
        """Finished steps of the oldest weights of engines that are given work; None before there are any."""
        self._step = 0
        """Finished steps."""
        self._num_taken = 0
        """Steps that have taken their groups."""
        self._quiet_since = clock()

    @property
    def outstanding(self) -> list[Outstanding]:
        """The groups that are begun and not trained, in the order of their prompts."""
        return [self._outstanding[ordinal] for ordinal in sorted(self._outstanding)]

    @property
    def _unfinished(self) -> list[Outstanding]:
        finished = set(self._finished)
        return [one for one in self.outstanding if one not in finished]

    @property
    def num_queued(self) -> int:
        """Groups that are finished and not trained."""
        return len(self._finished)

    def waits_for(self, generation: Generation | None) -> str:
        """The sentence about samples that have not come for some seconds, or else about rewards; empty while
        they come. `generation` says how far engines are."""
        num_groups = self._bound.groups_per_step
        are_sampled = [one.group.is_sampled for one in list(self._tasks)]
        still = generation and still_ahead_message(
            generation,
            step=self._step + 1,
            num_finished=len(self._finished),
            num_groups=num_groups,
            num_running=are_sampled.count(False),
        )
        if still or not any(are_sampled):
            return still or ""
        return unscored_message(
            f"step {self._step + 1}",
            num_scored=min(len(self._finished), num_groups),
            num_groups=num_groups,
            quiet_seconds=self._clock() - self._quiet_since,
            open_calls=self._scorer.open_calls(),
        )

    def begin(self, *, step: int) -> None:
        """Begin one more group after `step` finished steps, before there are engines."""
        self._step = self._num_taken = step
        self._begin()

    def serve(self, version: int) -> None:
        """Engines have weights of `version` finished steps, or are given no work until they have them."""
        if self._served is None:
            self._step = self._num_taken = version
            # before others are begun in the places of those that teach nothing
            for one in self.outstanding:
                if one.group.is_scored:
                    self._finish(one)
            self._fit_in(version)
            for one in self.outstanding:
                if one not in self._finished:
                    self._start(one)
        self._served = version
        self.begin_more()

    async def choose(self, step: int) -> Ended:
        """The groups that the step after `step` finished ones is trained on, as soon as there are enough of
        them, and what else has ended since the step before.

        Raises what ended the sampling or the scoring of a group, unless it is one of its own failures; and of
        these the last, where many groups of every environment fail one after the other.
        """
        self._step = step
        while (trained := self._chosen(step)) is None:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        others = [one for one in self._ended.filtered if one not in trained]
        return replace(self._ended, trained=trained, filtered=others)

    def take(self, ended: Ended) -> None:
        """A step takes these: they are outstanding no longer."""
        for one in (*ended.trained, *ended.filtered, *ended.failed, *ended.dropped):
            self._outstanding.pop(one.ordinal, None)
        trained = set(ended.trained)
        self._finished = [one for one in self._finished if one not in trained]
        self._ended = Ended()
        self._num_taken += 1

    def begin_more(self) -> None:
        """Begin a group for each place that is free."""
        if self._served is None:
            return
        # those of a last round keep their places: the step may be trained on them
        num_last = len(self._ended.filtered) + self._bound.groups_per_step - self._options.most_filtered
        num_outstanding = len(self._outstanding) + int(max(0, num_last))
        room = self._bound.room(num_outstanding, step=self._num_taken, version=self._served)
        num_steps = self._options.total_steps - self._num_taken
        for _ in range(min(room, num_steps * self._bound.groups_per_step - num_outstanding)):
            self._start(self._begin())

    def end(self, error: Exception) -> None:
        """The step that waits for groups, or the next one, raises `error`."""
        self._error = self._error or error
        self._changed.set()

    async def close(self) -> None:
        """Cancel what is not finished."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _chosen(self, step: int) -> list[Outstanding] | None:
        """What the step is trained on; None while it waits. Cancels what it does not wait for."""
        if self._options.is_planned:
            return self._planned()
        # with fewer there is nothing to choose, and this is asked for each group that ends
        while len(self._finished) >= self._bound.groups_per_step:
            choice = self._bound.choose(self._finished, self._unfinished, step=step)
            if choice.trained:
                return list(choice.trained)
            if not (self._options.drops_stale and choice.num_due):
                break
            for one in choice.due[: choice.num_due]:
                self._drop(one)
        if self._options.max_rounds is None:
            return None
        filtered, unfinished = self._ended.filtered, self._unfinished
        if self._is_last_round() and self._bound.is_kept_by(unfinished, step=step + 1):
            return list(self._finished) or filtered[: self._bound.groups_per_step]
        return None

    def _planned(self) -> list[Outstanding] | None:
        """What the step is trained on in the order of the prompts; None while it waits. The bound is kept:
        engines only ever get newer weights, and samples of an earlier attempt are forgotten where they would
        be too old when the turn of their group comes."""
        num_groups = self._bound.groups_per_step
        planned = self.outstanding[:num_groups]
        if not set(self._finished).issuperset(planned):
            return None
        if len(planned) < num_groups and not self._is_last_round():
            return None
        return planned or self._ended.filtered[:num_groups]

    def _is_last_round(self) -> bool:
        """Whether the step takes what it has. Where none is left to wait for, those that teach something
        count as well."""
        num_sampled = len(self._ended.filtered) + (0 if self._unfinished else len(self._finished))
        return num_sampled >= self._options.most_filtered

    def _begin(self) -> Outstanding:
        served = self._step if self._served is None else self._served
        begun = Outstanding(group=self._draw(self._step), served=served)
        num_restored = self._journal.restore([begun.group])
        self._outstanding[begun.ordinal] = begun
        if num_restored and self._served is not None and not self._is_kept():
            # an attempt had sampled it for a step that it did not train
            self._forget_samples(begun)
        return begun

    def _fit_in(self, version: int) -> None:
        """Let what a replay has left fit under the bound. Groups of a step that it could not repeat may be
        too many, and samples of groups that no step was trained on too old."""
        num_too_many = len(self._outstanding) - self._bound.room(0, step=self._num_taken, version=version)
        is_planned = self._options.is_planned  # and then finished ones wait for those before them
        newest = sorted(
            self.outstanding, key=lambda one: (not is_planned and one in self._finished, -one.ordinal)
        )
        too_many = newest[: max(0, num_too_many)]
        for one in too_many:
            del self._outstanding[one.ordinal]
            self._forget_samples(one)
        self._give_back([one.ordinal for one in too_many])
        for one in self._outstanding.values():
            one.served = version
        # those first that are not whole
        sampled = [one for one in self.outstanding if one.group.has_samples]
        sampled.sort(key=lambda one: (one.group.is_sampled, one.version))
        while sampled and not self._is_kept():
            self._forget_samples(sampled.pop(0))

    def _is_kept(self) -> bool:
        """Whether every group can be trained in time."""
        if self._options.is_planned:
            return self._bound.is_kept_in_order(self.outstanding, step=self._num_taken)
        return self._bound.is_kept_by(self._outstanding.values(), step=self._num_taken)

    def _forget_samples(self, one: Outstanding) -> None:
        if one in self._finished:
            self._finished.remove(one)
        one.group.forget_samples()
        self._journal.forget_restored(one.group)

    def _start(self, one: Outstanding) -> None:
        self._tasks[one] = asyncio.ensure_future(self._make(one))

    async def _make(self, one: Outstanding) -> None:
        try:
            await self._complete(one.group)
        except FAILURES_OF_A_GROUP as error:
            self._fail(one, error)
        except Exception as error:
            self.end(error)
        else:
            self._finish(one)
        finally:
            self._tasks.pop(one, None)
            self._changed.set()

    async def _complete(self, group: Group) -> None:
        if not group.is_sampled:
            await self._source.sample([group], take=self._take_sample, stays_awake=True)
        if group.is_left_out:
            raise FunctionFailedError(group.given_up[-1].why)
        if not group.is_scored:
            await score_group(group, scorer=self._scorer, journal=self._journal)
        self._quiet_since = self._clock()

    def _take_sample(self, group: Group, sample: int, found: Rollout | GivenUp) -> None:
        """May be called in any thread."""
        if isinstance(found, Rollout) and found.is_aborted:
            self._journal.sampled(group, sample, so_far=found)
            return
        group.rollouts[sample] = found
        self._journal.sampled(group, sample)

    def _finish(self, one: Outstanding) -> None:
        self._failures.count(sampled=[one.group])
        options = self._options
        is_filter = options.max_rounds is not None
        if is_filter and not bool(
            differing_groups(whole_rewards_of([one.group]), options=options.advantages)
        ):
            self._ended.filtered.append(one)
            self._free(one)
        else:
            self._finished.append(one)

    def _fail(self, one: Outstanding, error: Exception) -> None:
        if one.group.is_left_out:
            self._failures.count(failed=[one.group])
        else:  # by the engines or the scoring
            self._failures.count_of_all()
        if self._failures.is_end:
            self.end(error)
            return
        logger.warning(
            "row %d of the dataset is left out of training this time, and another one is sampled: %s",
            *(one.group.prompt.index + 1, error),
        )
        self._ended.failed.append(one)
        self._free(one)

    def _drop(self, one: Outstanding) -> None:
        if (task := self._tasks.pop(one, None)) is not None:
            task.cancel()
        self._ended.dropped.append(one)
        self._free(one)

    def _free(self, one: Outstanding) -> None:
        """Its place is free: it is outstanding no longer."""
        del self._outstanding[one.ordinal]
        self.begin_more()
