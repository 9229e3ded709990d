"""GRPO, as rank 0 coordinates it."""

import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.algorithm.advantages import compute_advantages
from grpo_runtime.algorithm.reward_metrics import reward_metrics
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.report.completions import completion_metrics, count_stale, count_tokens
from grpo_runtime.report.reporter import Reporter
from grpo_runtime.report.sync import sync_metrics
from grpo_runtime.rollout.interface import Engines, Rollout, SyncReport
from grpo_runtime.trainer.batch import make_batch, send_batch
from grpo_runtime.trainer.checkpoint.contents import RunState
from grpo_runtime.trainer.checkpoint.saver import Saver
from grpo_runtime.trainer.commands import Command
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.probe import make_probe
from grpo_runtime.trainer.prompting import make_requests
from grpo_runtime.trainer.scoring import Scorer, advantage_options
from grpo_runtime.trainer.stop import StopRequestedError
from grpo_runtime.trainer.stopwatch import Stopwatch
from grpo_runtime.trainer.strategy.interface import Strategy

T = TypeVar("T")


@dataclass(frozen=True)
class Coordinator:
    """Rank 0 with everything it coordinates. The other ranks are in `following`."""

    run_config: RunConfig
    attempt: int
    ranks: Ranks
    strategy: Strategy
    learner: Learner
    engines: Engines
    sampler: PromptSampler
    scorer: Scorer
    reporter: Reporter
    saver: Saver
    tokenizer: PreTrainedTokenizerBase

    async def train(self, state: RunState) -> bool:
        """Train from `state` to the last step: True when every step is done, False when asked to stop.

        When any rank is asked to stop, all end at the last step boundary, which is saved.
        """
        run_config, algorithm = self.run_config, self.run_config.algorithm
        for step in range(state.step, algorithm.steps):
            watch = Stopwatch()
            try:
                with watch.phase("sync"):
                    sync = await self._sync(step)
                with watch.phase("generate"):
                    prompts = self.sampler.next_prompts(algorithm.prompts_per_step)
                    requests = make_requests(
                        prompts, step=step, run_config=run_config, tokenizer=self.tokenizer
                    )
                    rollouts = await self._attend(self.engines.generate(requests))
                with watch.phase("score"):
                    scores = await self._attend(self.scorer.score(prompts, rollouts, step=step))
                self.ranks.announce(Command.TRAIN)
            except StopRequestedError:
                self._save(state)
                self.ranks.announce(Command.STOP)
                return False
            with watch.phase("train"):
                advantages = compute_advantages(scores.rewards, options=advantage_options(run_config))
                batch = make_batch(rollouts, advantages=advantages.advantages, pad_id=self._pad_id)
                send_batch(batch, ranks=self.ranks)
                learned = self.learner.update(batch, step=step)
            state = self._after_step(state, rollouts)
            scored = reward_metrics(scores.rewards, names=self.scorer.names, advantages=advantages)
            self._report(state, rollouts, sync, {**scores.metrics, **learned, **scored, **watch.seconds()})
            self._save(state, is_due=state.step % run_config.checkpoint.every_steps == 0)
        self._save(state)
        self.ranks.announce(Command.EXPORT)
        self.saver.export()
        # last, so that a report of the last step's checkpoint means that everything is written
        self.reporter.saved(self.saver.newest_step)
        self.ranks.announce(Command.DONE)
        return True

    async def _sync(self, step: int) -> SyncReport:
        """Give the engines the policy of `step` finished steps; also the first one, and after a resume."""
        probe = None
        if self.run_config.weight_sync.verify:
            self.ranks.announce(Command.PROBE)
            probe = make_probe(self.strategy, self.run_config, tokenizer=self.tokenizer)
        self.ranks.announce(Command.SYNC)
        sync = self.engines.sync(self.strategy.engine_weights(), version=self._version(step), probe=probe)
        report = await self._attend(sync)
        # generation may end before the next report is due, and training then takes as long as it takes
        self.reporter.report_waiting(self.engines.counts())
        return report

    def _after_step(self, state: RunState, rollouts: Sequence[Rollout]) -> RunState:
        """Where the run stands now that the step after `state` is trained."""
        stale = count_stale(rollouts, policy=self._version(state.step))
        return RunState(
            step=state.step + 1,
            num_tokens=state.num_tokens + sum(count_tokens(rollouts)),
            stale_samples=state.stale_samples + stale,
            sampler=self.sampler.state_dict(),
        )

    def _report(
        self, state: RunState, rollouts: Sequence[Rollout], sync: SyncReport, measured: dict[str, float]
    ) -> None:
        _, num_completion_tokens = count_tokens(rollouts)
        values = {
            # a user's own metric may be NaN, which no report can hold
            **{name: value for name, value in measured.items() if math.isfinite(value)},
            **completion_metrics(rollouts),
            **sync_metrics(sync),
            "num_tokens": float(state.num_tokens),
            "tokens_per_second": num_completion_tokens / measured["step_time"],
        }
        self.reporter.finished_step(
            values,
            step=state.step,
            policy_version=str(self._version(state.step)),
            stale_samples=state.stale_samples,
            engines=self.engines.counts(),
        )

    def _save(self, state: RunState, *, is_due: bool = True) -> None:
        if is_due and self.saver.is_new(state):
            self.ranks.announce(Command.SAVE)
            self.saver.save(state)
        if is_due and state.step < self.run_config.algorithm.steps:
            self.reporter.saved(self.saver.newest_step)

    @property
    def _pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)

    def _version(self, step: int) -> PolicyVersion:
        return PolicyVersion(attempt=self.attempt, step=step)

    async def _attend(self, work: Awaitable[T]) -> T:
        """Wait for `work` while the ranks go on meeting and the progress goes on being reported."""
        return await self.ranks.attend(
            work,
            on_tick=lambda: self.reporter.report_waiting(
                self.engines.counts(), generation=self.engines.generation()
            ),
        )
