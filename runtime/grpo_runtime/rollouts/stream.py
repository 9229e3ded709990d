"""The groups of each step: from the journal where it has them, else from the source and the reward
functions."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.process.loop_thread import LoopThread
from grpo_runtime.report.position import OwnPosition
from grpo_runtime.report.reporter import Reporter
from grpo_runtime.report.stopwatch import Stopwatch
from grpo_runtime.rollouts.collect import Collection
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import Engines, SyncReport
from grpo_runtime.rollouts.journal.journal import Journal, NoJournal
from grpo_runtime.rollouts.prompting import make_groups
from grpo_runtime.rollouts.scoring import Scorer
from grpo_runtime.rollouts.select import Selection
from grpo_runtime.rollouts.source import Source

T = TypeVar("T")


class Attend(Protocol):
    """Waits for work while the ranks go on meeting: see `Coordinator`. `waits_for` says in a sentence what
    takes long, if anything does."""

    async def __call__(self, work: Awaitable[T], *, waits_for: Callable[[], str] | None = None) -> T: ...


@dataclass(frozen=True, kw_only=True)
class StepGroups:
    """What a step is trained on, and all that was sampled for it."""

    trained: Sequence[Group]
    sampled: Sequence[Group]
    """Also those that were dropped."""
    metrics: Mapping[str, float]
    """Of the choice between them."""
    sync: SyncReport | None
    """None where the journal had all of them, so that no engine was needed."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Gives the groups of the steps of a run, one step after the other. `sync` gives the engines the weights
    of so many finished steps."""

    run_config: RunConfig
    position: OwnPosition
    engines: Engines
    source: Source
    sampler: PromptSampler
    scorer: Scorer
    reporter: Reporter
    journal: Journal | NoJournal
    tokenizer: PreTrainedTokenizerBase
    thread: LoopThread
    """Of the source and the reward functions."""
    attend: Attend
    sync: Callable[[int], Awaitable[SyncReport]]

    async def groups_of(self, step: int, *, watch: Stopwatch) -> StepGroups:
        """Those of the step that follows `step` finished ones, in one round or, with dynamic sampling, in
        several."""
        algorithm = self.run_config.algorithm
        dynamic = algorithm.dynamic_sampling
        selection = Selection(
            num_groups=algorithm.prompts_per_step,
            max_rounds=None if dynamic is None else dynamic.max_rounds,
            options=advantage_options(self.run_config),
        )
        sync: SyncReport | None = None
        while num_missing := selection.num_missing:
            groups = self._next_groups(num_missing, step=step, first_number=len(selection.sampled))
            self.position.at("begins a round of samples")
            num_replayed = self.journal.restore(groups)
            with watch.phase("sync"):
                sync = sync or await self._prepare_engines(groups, num_replayed=num_replayed)
            collection = self.collect(groups, journal=self.journal)
            with watch.phase("generate"):
                await self.attend(collection.sample(self.source, stays_awake=dynamic is not None))
            with watch.phase("score"):
                await self.attend(collection.score(), waits_for=collection.waits_for)
                selection.take(groups)
        if dynamic is not None:
            await self.attend(self.engines.rest())
        return StepGroups(
            trained=selection.selected(),
            sampled=selection.sampled,
            metrics=selection.metrics(),
            sync=sync,
        )

    def collect(self, groups: Sequence[Group], *, journal: Journal | NoJournal) -> Collection:
        """What fills `groups`, and tells `journal` of it."""
        return Collection(groups, scorer=self.scorer, journal=journal, thread=self.thread)

    def _next_groups(self, count: int, *, step: int, first_number: int) -> list[Group]:
        return make_groups(
            self.sampler.next_prompts(count),
            step=step,
            run_config=self.run_config,
            tokenizer=self.tokenizer,
            first_number=first_number,
        )

    async def _prepare_engines(self, groups: Sequence[Group], *, num_replayed: int) -> SyncReport | None:
        """Sync the engines, or let them rest when the journal has every sample of the round."""
        step, needs_engines = groups[0].step, not all(group.is_sampled for group in groups)
        self.reporter.begins_round(needs_engines=needs_engines)
        if num_replayed:
            self.reporter.replaying(num_replayed, step=step + 1)
        if needs_engines:
            return await self.sync(step)
        await self.attend(self.engines.rest())
        return None


def advantage_options(run_config: RunConfig) -> AdvantageOptions:
    """How a run turns rewards into advantages."""
    algorithm = run_config.algorithm
    return AdvantageOptions(
        group_size=algorithm.group_size,
        weights=tuple(reward.weight for reward in run_config.rewards),
        scale_rewards=algorithm.scale_rewards.value,
        aggregation=algorithm.aggregation.value,
        baseline=algorithm.baseline.value,
    )
