"""The groups of each step: which are begun, and which of them the step is trained on.

They come from the journal where it has them, else from the source and the reward functions.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.algorithm.advantages import compute_advantages, differing_groups
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.process.background import LoopThread
from grpo_runtime.report.phases import Stopwatch
from grpo_runtime.report.position import OwnPosition
from grpo_runtime.report.reporter import Reporter
from grpo_runtime.rollouts.collect import Collection, Source
from grpo_runtime.rollouts.failures import FailuresInARow
from grpo_runtime.rollouts.group import Group, whole_rewards_of
from grpo_runtime.rollouts.interface import Engines, FunctionFailedError, SyncReport
from grpo_runtime.rollouts.journal.journal import Journal, NoJournal
from grpo_runtime.rollouts.prompting import make_groups
from grpo_runtime.rollouts.scoring import Scorer

logger = logging.getLogger(__name__)

ROUNDS = "dynamic_sampling/rounds"
GENERATED = "dynamic_sampling/generated_groups"
FILTERED = "dynamic_sampling/filtered_groups"
GENERATED_REWARD = "dynamic_sampling/generated_reward"
"""Metrics of dynamic sampling."""
T = TypeVar("T")


class Attend(Protocol):
    """Waits for work while the ranks continue meeting, as `Coordinator` does. `waits_for` says in a sentence
    what takes long, if anything does."""

    async def __call__(self, work: Awaitable[T], *, waits_for: Callable[[], str] | None = None) -> T: ...


@dataclass(frozen=True, kw_only=True)
class StepGroups:
    """What a step is trained on, and all that was sampled for it."""

    trained: Sequence[Group]
    sampled: Sequence[Group]
    """Also those that were filtered out."""
    left_out: Sequence[Group] = ()
    """Those of which too many samples were given up, in whose places others were sampled."""
    metrics: Mapping[str, float]
    """Metrics of the choice between them."""
    sync: SyncReport | None
    """None where engines got no weights for the step: it needed none, or they have them from before."""
    sampler: dict[str, Any]
    """State of the sampler once the step is trained."""

    @property
    def all_sampled(self) -> Sequence[Group]:
        """Those that were sampled for it, whatever became of them."""
        return (*self.sampled, *self.left_out)


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
    """Thread of the source and the reward functions."""
    attend: Attend
    sync: Callable[[int], Awaitable[SyncReport]]
    failures: FailuresInARow
    advantages: AdvantageOptions
    """How rewards become advantages: a group whose rewards give none teaches nothing."""

    async def groups_of(self, step: int, *, watch: Stopwatch) -> StepGroups:
        """The groups of the step that follows `step` finished ones, in one round, or in several where others
        take the places of groups that teach nothing, with dynamic sampling, or that are left out.

        Raises FunctionFailedError where many groups in a row of every environment are left out.
        """
        algorithm = self.run_config.algorithm
        dynamic = algorithm.dynamic_sampling
        selection = Selection(
            num_groups=algorithm.prompts_per_step,
            max_rounds=None if dynamic is None else dynamic.max_rounds,
            options=self.advantages,
            failures=self.failures,
        )
        stays_awake = dynamic is not None or self.run_config.completions_may_fail
        sync: SyncReport | None = None
        while num_missing := selection.num_missing:
            groups = self._next_groups(num_missing, step=step, first_number=selection.num_begun)
            self.position.at("begins a round of samples")
            num_replayed = self.journal.restore(groups)
            with watch.phase("sync"):
                sync = sync or await self._prepare_engines(groups, num_replayed=num_replayed)
            collection = Collection(groups, scorer=self.scorer, journal=self.journal, thread=self.thread)
            with watch.phase("generate"):
                await self.attend(collection.sample(self.source, stays_awake=stays_awake))
            with watch.phase("score"):
                await self.attend(collection.score(), waits_for=collection.waits_for)
                selection.take(groups)
        if stays_awake:
            await self.attend(self.engines.rest())
        return StepGroups(
            trained=selection.selected(),
            sampled=selection.sampled,
            left_out=selection.left_out,
            metrics=selection.metrics(),
            sync=sync,
            sampler=self.sampler.state_dict(),
        )

    async def give_weights(self, step: int) -> SyncReport:
        """Give the engines the weights of `step` finished steps, for an evaluation; the next step gives them
        once more."""
        return await self.sync(step)

    async def close(self) -> None:
        """Nothing runs between two steps."""

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


class Selection:
    """Which groups a step is trained on: all that were sampled, or with algorithm.dynamicSampling those that
    teach something. It takes them round by round, until it has as many as the step needs. Groups that are
    left out are no part of a round: others take their places."""

    def __init__(
        self,
        *,
        num_groups: int,
        max_rounds: int | None,
        options: AdvantageOptions,
        failures: FailuresInARow,
    ) -> None:
        """`max_rounds` is None in a run that takes what the first round gives; `failures` are those of the
        run."""
        self.sampled: list[Group] = []
        """All groups that it was given and that are not left out, in their order."""
        self.left_out: list[Group] = []
        self._num_groups = num_groups
        self._max_rounds = max_rounds
        self._options = options
        self._failures = failures
        self._num_rounds = 0
        self._num_free = 0
        """Places of the newest round whose groups are left out."""
        self._selected: list[Group] = []

    @property
    def num_begun(self) -> int:
        """Groups that it was given."""
        return len(self.sampled) + len(self.left_out)

    @property
    def num_missing(self) -> int:
        """Groups to sample in the next round; 0 where the step is trained on what there is."""
        num_missing = self._num_groups - len(self._selected)
        if self._num_rounds < (self._max_rounds or 1):
            return num_missing
        return min(self._num_free, num_missing)

    def take(self, groups: Sequence[Group]) -> None:
        """The groups of a round, scored but for those that are left out. Raises FunctionFailedError with the
        failure of the last one where many in a row of every environment are left out."""
        is_refill = self._num_rounds == (self._max_rounds or 1)
        self._num_rounds += not is_refill
        left_out = [group for group in groups if group.is_left_out]
        sampled = [group for group in groups if not group.is_left_out]
        self._num_free = len(left_out)
        self.sampled += sampled
        self.left_out += left_out
        for group in left_out:
            logger.warning(
                "row %d of the dataset is left out of training this time, and another one is sampled: %s",
                *(group.prompt.index + 1, group.given_up[-1].why),
            )
        self._failures.count(failed=left_out, sampled=sampled)
        if self._failures.is_end:
            raise FunctionFailedError(left_out[-1].given_up[-1].why)
        if self._max_rounds is None or not sampled:
            self._selected += sampled
        else:
            differ = differing_groups(whole_rewards_of(sampled), options=self._options).tolist()
            self._selected += [group for group, differs in zip(sampled, differ, strict=True) if differs]

    def selected(self) -> list[Group]:
        """The groups that differ, in the order in which they were sampled: fewer than the step has prompts,
        where rounds did not suffice. Where none differs it is the first round, which teaches nothing."""
        return self._selected or self.sampled[: self._num_groups]

    def metrics(self) -> dict[str, float]:
        """Metrics of dynamic sampling, in a run that has it."""
        if self._max_rounds is None:
            return {}
        filtered = len(self.sampled) - len(self._selected)
        found = dynamic_sampling_metrics(self.sampled, num_filtered=filtered, options=self._options)
        return {ROUNDS: float(self._num_rounds), **found}


def dynamic_sampling_metrics(
    sampled: Sequence[Group], *, num_filtered: int, options: AdvantageOptions
) -> dict[str, float]:
    """Metrics of all groups that were sampled for a step, of which `num_filtered` teach nothing."""
    rewards = compute_advantages(whole_rewards_of(sampled), options=options).rewards
    return {
        GENERATED: float(len(sampled)),
        FILTERED: float(num_filtered),
        GENERATED_REWARD: rewards.nanmean().item(),
    }
