"""The groups of each step in asynchronous training: engines sample ahead while the trainer trains, and get
its weights while they sample.

Which groups a step is trained on is a matter of chance, so it is on disk before the step is trained. After a
restart the steps since the checkpoint are trained on the same groups once more.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_api.contract.progress import QUEUED, RUNNING, STALENESS
from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec.asynchronous import StalePolicy, TrainedOrder
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.process.background import LoopThread
from grpo_runtime.report.phases import Stopwatch
from grpo_runtime.report.position import OwnPosition
from grpo_runtime.report.progress import STILL_SECONDS, rounded_down
from grpo_runtime.report.reporter import Reporter
from grpo_runtime.rollouts.ahead import AheadOptions, Ended, GroupsAhead
from grpo_runtime.rollouts.collect import Source, judge_groups
from grpo_runtime.rollouts.failures import FailuresInARow
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import Generation, OnRead, SyncReport
from grpo_runtime.rollouts.journal.async_journal import AsyncJournal
from grpo_runtime.rollouts.journal.journal import NoJournal
from grpo_runtime.rollouts.journal.records import Composed
from grpo_runtime.rollouts.prompting import make_group_of_run
from grpo_runtime.rollouts.scoring import Scorer
from grpo_runtime.rollouts.staleness import StalenessBound
from grpo_runtime.rollouts.stream import Attend, StepGroups, dynamic_sampling_metrics

GROUPS_BY_STALENESS = "async/groups_by_staleness"
FAILED = "async/failed_groups"
DROPPED = "async/dropped_groups"
"""Metrics of asynchronous training, beside those that a report of the progress has too."""


@dataclass(kw_only=True)
class AsyncStream:
    """Gives the groups of the steps of a run, one step after the other. The engines get the weights of so
    many finished steps by `begin_sync`."""

    run_config: RunConfig
    position: OwnPosition
    source: Source
    sampler: PromptSampler
    scorer: Scorer
    reporter: Reporter
    journal: AsyncJournal | NoJournal
    tokenizer: PreTrainedTokenizerBase
    thread: LoopThread
    """Thread of the source and the reward functions."""
    attend: Attend
    begin_sync: Callable[[int, OnRead], Coroutine[Any, Any, SyncReport]]
    """A weight sync, which is begun when it is awaited; it says when the weights may change."""
    clock: Callable[[], float] = time.monotonic
    generation: Callable[[], Generation | None]
    """How far engines are with what they sample."""
    failures: FailuresInARow
    advantages: AdvantageOptions
    """How rewards become advantages: a group whose rewards give none teaches nothing."""
    _ahead: GroupsAhead = field(init=False)
    _version: int | None = None
    """Finished steps of the newest weights that engines are given; None while the journal is replayed."""
    _syncing: "Future[SyncReport] | None" = None
    """The newest weight sync, until `_note_report` finds that it has ended."""
    _syncing_since: float = 0.0
    _is_waiting_for_sync: bool = False
    _report: SyncReport | None = None
    """That of the newest sync that has ended, until a step has it."""

    def __post_init__(self) -> None:
        algorithm, asynchronous = self.run_config.algorithm, self.run_config.asynchronous
        assert asynchronous is not None
        dynamic = algorithm.dynamic_sampling
        options = AheadOptions(
            bound=StalenessBound(
                max_staleness=asynchronous.max_staleness, groups_per_step=algorithm.prompts_per_step
            ),
            total_steps=self.run_config.total_steps,
            drops_stale=asynchronous.stale is StalePolicy.DROP,
            is_planned=asynchronous.order is TrainedOrder.PLANNED,
            max_rounds=None if dynamic is None else dynamic.max_rounds,
            advantages=self.advantages,
        )
        self._ahead = GroupsAhead(
            options,
            draw=self._draw,
            give_back=self.sampler.give_back,
            source=self.source,
            scorer=self.scorer,
            journal=self.journal,
            failures=self.failures,
        )

    async def groups_of(self, step: int, *, watch: Stopwatch) -> StepGroups:
        """The groups of the step that follows `step` finished ones. Others are sampled on while it is
        trained."""
        self.position.at("begins a round of samples")
        if self._version is None:
            replayed = await self.thread.run(self._replay(step))
            if replayed is not None:
                self.reporter.begins_round(needs_engines=False)
                num_samples = sum(len(group.completions) for group in replayed.sampled)
                self.reporter.replaying(num_samples, step=step + 1)
                return replayed
        self.reporter.begins_round(needs_engines=True)
        with watch.phase("sync"):
            if self._version is None:
                await self._give_weights(step)
            elif self._is_sync_due(step):
                await self._begin_sync(step)
        with watch.phase("generate"):
            return await self.attend(
                self.thread.run(self._choose(step, sync=self._take_report())), waits_for=self._waits_for
            )

    async def give_weights(self, step: int) -> None:
        """Give the engines the weights of `step` finished steps, for an evaluation, and return when they have
        them. While the journal is replayed they sample nothing else with them."""
        if self._version is None:
            await self.attend(self.begin_sync(step, lambda: None), waits_for=self._waits_for)
        else:
            await self._give_weights(step)

    async def _give_weights(self, step: int) -> None:
        await self._begin_sync(step)
        await self._finish_sync()

    async def _begin_sync(self, step: int) -> None:
        """Begin to give the engines the weights of `step` finished steps, once they have those before; return
        when the weights may change."""
        await self._finish_sync()
        loop, read = asyncio.get_running_loop(), asyncio.Event()

        def on_read() -> None:
            loop.call_soon_threadsafe(read.set)

        work = self.begin_sync(step, on_read)
        self._version = step
        self._syncing = self.thread.begin(self._serve_after(work, step=step))
        syncing = asyncio.wrap_future(self._syncing)

        def on_end(ended: "asyncio.Future[SyncReport]") -> None:
            read.set()
            if not ended.cancelled():
                ended.exception()  # the step that waits for groups, or for the sync, raises it

        syncing.add_done_callback(on_end)
        self._syncing_since = self.clock()
        await self.attend(read.wait(), waits_for=self._waits_for)

    async def _finish_sync(self) -> None:
        """Return when no sync runs. Raises what ended the newest."""
        if self._syncing is None:
            return
        if not self._syncing.done():
            syncing = asyncio.shield(asyncio.wrap_future(self._syncing))
            self._is_waiting_for_sync = True
            try:
                await self.attend(syncing, waits_for=self._waits_for)
            finally:
                self._is_waiting_for_sync = False
        self._note_report()

    def _waits_for(self) -> str:
        seconds = self.clock() - self._syncing_since
        if self._is_waiting_for_sync and seconds >= STILL_SECONDS:
            return (
                f"the weights of step {self._version} have been on their way to the engines for "
                f"{rounded_down(seconds)} s, and those of the next step wait for them"
            )
        return self._ahead.waits_for(self.generation())

    def _note_report(self) -> None:
        if self._syncing is not None and self._syncing.done():
            self._report, self._syncing = self._syncing.result(), None

    def _take_report(self) -> SyncReport | None:
        """The report of the newest sync that has ended since it was last asked."""
        self._note_report()
        report, self._report = self._report, None
        return report

    async def close(self) -> None:
        """Cancel what is being sampled and scored, and the sync that runs."""
        if self._syncing is not None:
            self._syncing.cancel()
        await self.thread.run(self._ahead.close())

    def _is_sync_due(self, step: int) -> bool:
        asynchronous = self.run_config.asynchronous
        assert asynchronous is not None
        return self._version != step and step % asynchronous.sync_every_steps == 0

    # --- in the thread of the rollouts ---

    def _draw(self, step: int) -> Group:
        return make_group_of_run(
            self.sampler.draw(), step=step, run_config=self.run_config, tokenizer=self.tokenizer
        )

    async def _replay(self, step: int) -> StepGroups | None:
        """The groups that a lower attempt has trained this step on; None where the journal has not all of
        them, from where on engines sample."""
        composed = self.journal.begin(step)
        ended = None if composed is None else self._replayed(composed, step=step)
        if ended is None:
            self._restore()
            self.journal.stop_replaying(step)
            return None
        return self._take(ended, step=step, sync=None)

    def _replayed(self, composed: Composed, *, step: int) -> Ended | None:
        while self.sampler.has_again or self.sampler.num_drawn < composed.num_drawn:
            self._ahead.begin(step=step)
        self._restore()
        by_ordinal = {one.ordinal: one for one in self._ahead.outstanding}
        if not by_ordinal.keys() >= set(composed.ordinals):
            return None
        ended = Ended(
            trained=[by_ordinal[ordinal] for ordinal in composed.trained],
            filtered=[by_ordinal[ordinal] for ordinal in composed.filtered],
            failed=[by_ordinal[ordinal] for ordinal in composed.failed],
            dropped=[by_ordinal[ordinal] for ordinal in composed.dropped],
        )
        is_whole = composed.is_of([one.group for one in (*ended.trained, *ended.filtered)])
        return ended if is_whole else None

    def _restore(self) -> None:
        self.journal.restore([one.group for one in self._ahead.outstanding])

    async def _serve_after(self, work: Coroutine[Any, Any, SyncReport], *, step: int) -> SyncReport:
        """Sample with the weights of `step` finished steps once engines have them."""
        try:
            report = await work
        except Exception as error:
            self._ahead.end(error)
            raise
        self._ahead.serve(step)
        return report

    async def _choose(self, step: int, *, sync: SyncReport | None) -> StepGroups:
        ended = await self._ahead.choose(step)
        sampled = [one.group for one in (*ended.trained, *ended.filtered)]
        judge_groups(sampled, step=step, scorer=self.scorer, journal=self.journal, scored_now=sampled)
        return self._take(ended, step=step, sync=sync)

    def _take(self, ended: Ended, *, step: int, sync: SyncReport | None) -> StepGroups:
        """Give the step its groups, write which they are, and sample others in their places."""
        self._ahead.take(ended)
        trained = [one.group for one in ended.trained]
        sampled = [one.group for one in (*ended.trained, *ended.filtered)]
        self.journal.composed(
            step,
            Composed.of_step(
                trained=trained,
                filtered=[one.group for one in ended.filtered],
                failed=[one.ordinal for one in ended.failed],
                dropped=[one.ordinal for one in ended.dropped],
                num_drawn=self.sampler.num_drawn,
            ),
        )
        outstanding = self._ahead.outstanding
        groups = StepGroups(
            trained=trained,
            sampled=sampled,
            left_out=[one.group for one in ended.failed if one.group.is_left_out],
            metrics={
                **self._dynamic_sampling_metrics(sampled, ended=ended),
                **_metrics(ended, step=step, num_queued=self._ahead.num_queued, num_open=len(outstanding)),
            },
            sync=sync,
            sampler=self.sampler.state_dict(not_trained=[one.ordinal for one in outstanding]),
        )
        self._ahead.begin_more()
        return groups

    def _dynamic_sampling_metrics(self, sampled: Sequence[Group], *, ended: Ended) -> dict[str, float]:
        if self.run_config.algorithm.dynamic_sampling is None:
            return {}
        return dynamic_sampling_metrics(sampled, num_filtered=len(ended.filtered), options=self.advantages)


def _metrics(ended: Ended, *, step: int, num_queued: int, num_open: int) -> dict[str, float]:
    """How old the groups of a step are, and what became of the others."""
    staleness = [step - one.version for one in ended.trained]
    return {
        f"{STALENESS}/mean": sum(staleness) / len(staleness),
        f"{STALENESS}/max": float(max(staleness)),
        **{f"{GROUPS_BY_STALENESS}/{age}": float(num) for age, num in sorted(Counter(staleness).items())},
        FAILED: float(len(ended.failed)),
        DROPPED: float(len(ended.dropped)),
        QUEUED: float(num_queued),
        RUNNING: float(num_open - num_queued),
    }
