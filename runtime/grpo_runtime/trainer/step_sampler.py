"""Prompts, completions and rewards of a step: from the journal where it has them, else from the engines and
the reward functions."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.report.reporter import Reporter
from grpo_runtime.rollout.interface import (
    Engines,
    GenerateRequest,
    Generator,
    OnFinished,
    Rollout,
    SyncReport,
)
from grpo_runtime.rollout_function.turns import RolloutFunction
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.journal.journal import Journal, NoJournal
from grpo_runtime.trainer.journal.step import Step
from grpo_runtime.trainer.prompting import make_requests
from grpo_runtime.trainer.scoring import Scorer, advantage_options
from grpo_runtime.trainer.selection import Selection
from grpo_runtime.trainer.step_results import SampledStep
from grpo_runtime.trainer.stopwatch import Stopwatch

T = TypeVar("T")


class Attend(Protocol):
    """Waits for work while the ranks go on meeting: see `Coordinator`. `waits_for` says in a sentence what
    takes long, if anything does."""

    async def __call__(self, work: Awaitable[T], *, waits_for: Callable[[], str] | None = None) -> T: ...


@dataclass(frozen=True, kw_only=True)
class StepSampler:
    """Samples the steps of a run. `sync` gives the engines the weights of so many finished steps."""

    run_config: RunConfig
    ranks: Ranks
    engines: Engines
    sampler: PromptSampler
    scorer: Scorer
    reporter: Reporter
    journal: Journal | NoJournal
    tokenizer: PreTrainedTokenizerBase
    rollout_function: RolloutFunction | None
    attend: Attend
    sync: Callable[[int], Awaitable[SyncReport]]

    async def sample(self, step: int, *, watch: Stopwatch) -> SampledStep:
        """The step that follows `step` finished ones, in one round or, with dynamic sampling, in several."""
        algorithm = self.run_config.algorithm
        dynamic = algorithm.dynamic_sampling
        selection = Selection(
            num_groups=algorithm.prompts_per_step,
            max_rounds=None if dynamic is None else dynamic.max_rounds,
            options=advantage_options(self.run_config),
        )
        recorded: Step | None = None
        sync: SyncReport | None = None
        while num_missing := selection.num_missing:
            first_group = selection.num_generated
            prompts = self.sampler.next_prompts(num_missing)
            requests = make_requests(
                prompts,
                step=step,
                run_config=self.run_config,
                tokenizer=self.tokenizer,
                first_place=first_group,
            )
            self.ranks.position.at("writes the prompts into the journal")
            recorded = self.journal.begin(step, requests) if recorded is None else recorded.more(requests)
            scoring = self.scorer.begin(prompts, step=step, first_group=first_group)
            with watch.phase("sync"):
                sync = sync or await self._prepare_engines(recorded)
            with watch.phase("generate"):
                generator = generator_of(
                    self.engines,
                    self.rollout_function,
                    prompts=prompts,
                    requests=requests,
                    step=step,
                    stays_awake=dynamic is not None,
                )
                rollouts = await self.attend(recorded.generate(generator, scoring=scoring))
            with watch.phase("score"):
                scores = recorded.score(scoring, rollouts)
                selection.take(rollouts, await self.attend(scores, waits_for=scoring.waits_for))
        assert recorded is not None
        with watch.phase("score"):
            await self._keep(recorded)
        if dynamic is not None:
            await self.attend(self.engines.rest())
        return SampledStep(recorded=recorded, sync=sync, selected=selection.selected())

    async def _prepare_engines(self, recorded: Step) -> SyncReport | None:
        """Sync the engines, or let them rest when the journal has every sample of the round."""
        self.reporter.begins_round(needs_engines=recorded.needs_engines)
        if recorded.num_replayed:
            self.reporter.replaying(recorded.num_replayed, step=recorded.step + 1)
        if recorded.needs_engines:
            return await self.sync(recorded.step)
        await self.attend(self.engines.rest())
        return None

    async def _keep(self, recorded: Step) -> None:
        """Wait until the journal has the step on disk, which must be before it is trained on."""
        if not recorded.is_recorded:
            return
        await self.ranks.attend(
            recorded.kept(), on_tick=lambda: self.reporter.moves("the journal is being written", num_bytes=0)
        )


def generator_of(
    engines: Engines,
    rollout_function: RolloutFunction | None,
    *,
    prompts: Sequence[Prompt],
    requests: Sequence[GenerateRequest],
    step: int,
    stays_awake: bool = False,
) -> Generator:
    """What makes the completions: the engines, or the user's function with them. They stay awake for another
    call, or rest behind it."""
    if rollout_function is not None:
        return rollout_function.over(
            engines, prompts=prompts, requests=requests, step=step, stays_awake=stays_awake
        )
    return _Awake(engines) if stays_awake else engines


@dataclass(frozen=True)
class _Awake:
    """Engines that do not rest after a call."""

    engines: Engines

    async def generate(
        self, requests: Sequence[GenerateRequest], *, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        """See `Generator`."""
        return await self.engines.generate(requests, on_finished=on_finished, stays_awake=True)
