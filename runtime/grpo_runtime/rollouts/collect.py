"""Fills groups: a source makes samples, in any order and any thread, and a group is scored as soon as it has
all of its own.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from grpo_runtime.process.background import LoopThread
from grpo_runtime.report.waiting import unscored_message
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import Engines, GivenUp, Rollout
from grpo_runtime.rollouts.journal.journal import Journal, NoJournal, Recorder
from grpo_runtime.rollouts.scoring import Scorer

AnyJournal = Recorder | NoJournal
Take = Callable[[Group, int, Rollout | GivenUp], None]
"""Takes a sample of a group as soon as it is finished or given up, with its index in the group. Called in any
thread, once for each sample; it must not raise."""


class Source(Protocol):
    """Makes samples."""

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        """Make every sample that `groups` miss, or give it up. With `stays_awake` another call follows, or
        `Engines.rest`; without it, engines that share the trainer's memory give it back."""
        ...


@dataclass(frozen=True)
class EngineSource:
    """The engines: a sample is one request. With `takes_segments`, `take` gets what is handed over, too."""

    engines: Engines
    takes_segments: bool = False

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        """Make every sample that `groups` miss."""
        places = [(group, sample) for group in groups for sample in group.missing]

        def take_finished(index: int, rollout: Rollout) -> None:
            if self.takes_segments or not rollout.is_aborted:
                take(*places[index], rollout)

        await self.engines.generate(
            [group.requests[sample] for group, sample in places],
            on_finished=take_finished,
            stays_awake=stays_awake,
        )


async def score_group(group: Group, *, scorer: Scorer, journal: AnyJournal) -> None:
    """Score a group that is sampled. Rewards of which some failed are recorded by `judge_groups`."""
    group.columns = await scorer.score(group)
    if not group.failures:
        journal.scored(group)


def judge_groups(
    groups: Sequence[Group], *, step: int, scorer: Scorer, journal: AnyJournal, scored_now: Iterable[Group]
) -> None:
    """Look at the failures of groups of the step after `step` finished ones, and record those of
    `scored_now`: only now, so that the next attempt asks the function again where the step is refused.

    Raises UserError when a function fails more than it may.
    """
    scorer.judge(groups, step=step)
    for group in scored_now:
        if group.failures:
            journal.scored(group)


class Collection:
    """Groups of one step while they are filled. That continues in the thread of the rollouts, also while an
    update of the policy blocks the main thread."""

    def __init__(
        self,
        groups: Sequence[Group],
        *,
        scorer: Scorer,
        journal: Journal | NoJournal,
        thread: LoopThread,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`journal` records every sample, and every group that is scored."""
        self._groups = groups
        self._scorer = scorer
        self._journal = journal
        self._thread = thread
        self._clock = clock
        self._lock = threading.Lock()
        self._quiet_since = clock()
        self._scoring: dict[int, asyncio.Task[None]] = {}

    async def sample(self, source: Source, *, stays_awake: bool = False) -> None:
        """Let `source` make what is missing; `stays_awake` as there."""
        await self._thread.run(self._sample(source, stays_awake=stays_awake))

    async def score(self) -> None:
        """Return once every group is scored that is not left out.

        Raises UserError when a function fails more than it may, and what else a call raises, which ends the
        others.
        """
        await self._thread.run(self._score())

    def take(self, group: Group, sample: int, found: Rollout | GivenUp) -> None:
        """A sample of a group is finished or given up. May be called in any thread."""
        with self._lock:
            group.rollouts[sample] = found
            is_last = group.is_sampled
        self._journal.sampled(group, sample)
        if is_last:
            # an engine that was not asked to stop may finish one after the thread has ended
            with contextlib.suppress(RuntimeError):
                self._thread.call_soon(self._begin_scoring, group)

    def waits_for(self) -> str:
        """The sentence about rewards that have not come for some seconds; empty while they come."""
        return unscored_message(
            self._scorer.name_of(self._groups[0]),
            num_scored=sum(group.is_scored for group in self._groups),
            num_groups=sum(not group.is_left_out for group in self._groups),
            quiet_seconds=self._clock() - self._quiet_since,
            open_calls=self._scorer.open_calls(),
        )

    async def _sample(self, source: Source, *, stays_awake: bool) -> None:
        incomplete = [group for group in self._groups if not group.is_sampled]
        if not incomplete:
            return
        for group in self._groups:
            if group.is_sampled:
                self._begin_scoring(group)
        await source.sample(incomplete, take=self.take, stays_awake=stays_awake)

    async def _score(self) -> None:
        self._quiet_since = self._clock()
        for group in self._groups:
            self._begin_scoring(group)
        if not self._scoring:
            return
        try:
            await asyncio.gather(*self._scoring.values())
        finally:
            for task in self._scoring.values():
                task.cancel()
        judge_groups(
            [group for group in self._groups if group.is_scored],
            step=self._groups[0].step,
            scorer=self._scorer,
            journal=self._journal,
            scored_now=[group for group in self._groups if group.number in self._scoring],
        )

    def _begin_scoring(self, group: Group) -> None:
        if not (group.is_scored or group.is_left_out or group.number in self._scoring):
            self._scoring[group.number] = asyncio.create_task(self._score_group(group))

    async def _score_group(self, group: Group) -> None:
        await score_group(group, scorer=self._scorer, journal=self._journal)
        self._quiet_since = self._clock()
