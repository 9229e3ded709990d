"""How good the policy is on prompts that it is not trained on. P prompts, S samples of each, F rewards.

An evaluation leaves nothing behind that a step could see: it has seeds and prompts of its own, and is not in
the journal. An attempt that continues from a checkpoint makes the later ones again, with the same result.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import EvalSpec
from grpo_runtime.algorithm.advantage_scaling import without_overflow
from grpo_runtime.algorithm.advantages import compute_advantages
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.errors import RewardServiceUnreachableError, UserError
from grpo_runtime.report.metrics import completion_metrics, environment_rewards
from grpo_runtime.report.samples import Sample
from grpo_runtime.rollouts.group import Group, completions_of, rewards_of
from grpo_runtime.rollouts.prompting import make_requests

logger = logging.getLogger(__name__)

PREFIX = "eval/"
REWARD = f"{PREFIX}reward"
"""Mean of the weighted sums of rewards; that of the best checkpoint is the greatest."""
FAILED = f"{PREFIX}failed"
"""1 or 0 in each evaluation."""
GIVEN_UP = f"{PREFIX}given_up_episodes"
"""Completions that could not be made, and are in no mean; left out where there is none."""
OF_COMPLETIONS = ("completions/mean_length", "completions/clipped_ratio")


@dataclass(frozen=True)
class Evaluated:
    """Result of an evaluation. One that is cut off by a stop request says nothing about the policy."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    """Its completions, where the run keeps any."""
    is_best: bool = False
    is_stopped: bool = False


class Evaluation:
    """Makes the groups of an evaluation and reads its results, and learns which checkpoint is the best."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        *,
        options: EvalSpec,
        run_config: RunConfig,
        tokenizer: PreTrainedTokenizerBase,
        best_reward: float | None,
        mark_best: Callable[[int, float], None],
    ) -> None:
        """`best_reward` is that of earlier attempts, if they have one. `mark_best` gets the step of a
        committed checkpoint that is better than all before, and its reward."""
        self._prompts = tuple(prompts)
        self._options = options
        self._last_step = run_config.total_steps
        self._reward_names = [reward.name for reward in run_config.rewards]
        self._weights = tuple(reward.weight for reward in run_config.rewards)
        self._best_reward = best_reward
        self._mark_best = mark_best
        self._uncommitted: dict[int, float] = {}
        # the same seeds in every evaluation, and those of no step, whose prompts count from 0
        self._requests = [
            make_requests(
                prompt,
                count=options.samples,
                step=0,
                place=-1 - number,
                run_config=run_config,
                tokenizer=tokenizer,
                is_evaluation=True,
            )
            for number, prompt in enumerate(prompts)
        ]

    def is_due(self, step: int) -> bool:
        """Whether to evaluate after `step` finished steps."""
        return step % self._options.every_steps == 0 or step == self._last_step

    def groups(self, step: int) -> list[Group]:
        """Groups that are sampled after `step` finished steps: S completions of each prompt."""
        return [
            Group(step=step, number=number, prompt=prompt, requests=requests)
            for number, (prompt, requests) in enumerate(zip(self._prompts, self._requests, strict=True))
        ]

    async def measure(self, scoring: Awaitable[None], groups: Sequence[Group]) -> Mapping[str, float]:
        """Metrics of `groups`, once `scoring` has scored them. An evaluation whose rewards fail, or of which
        no completion could be made, ends no run: training does not need it."""
        try:
            await scoring
        except (UserError, RewardServiceUnreachableError) as error:
            logger.warning(
                "the evaluation after step %d failed, training continues: %s", groups[0].step, error
            )
            return {FAILED: 1.0}
        sampled = [group for group in groups if not group.is_left_out]
        given_up = [found for group in groups for found in group.given_up]
        num_given_up = {GIVEN_UP: float(len(given_up))} if given_up else {}
        if not sampled:
            logger.warning(
                "the evaluation after step %d failed, training continues: no completion could be made: %s",
                *(groups[0].step, given_up[-1].why),
            )
            return {FAILED: 1.0, **num_given_up}
        return {**self.metrics(sampled), FAILED: 0.0, **num_given_up}

    def rewards(self, groups: Sequence[Group]) -> torch.Tensor:
        """[P x S], the weighted sum of the rewards of each completion, NaN where it has none."""
        return self._sums(without_overflow(rewards_of(groups)))

    def metrics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Metrics of an evaluation. A reward that no completion has is left out."""
        completions, rewards = completions_of(groups), without_overflow(rewards_of(groups))
        sums = self._sums(rewards)
        of_environments = environment_rewards(completions, sums.tolist())
        found = {
            REWARD: float(sums.nanmean()),
            **{
                f"{PREFIX}rewards/{name}/mean": float(column.nanmean())
                for name, column in zip(self._reward_names, rewards.unbind(1), strict=True)
            },
            **{f"{PREFIX}{name}": value for name, value in of_environments.items()},
        }
        lengths = completion_metrics(completions)
        found |= {f"{PREFIX}{name}": lengths[name] for name in OF_COMPLETIONS}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _sums(self, rewards: torch.Tensor) -> torch.Tensor:
        # the sums are those of training; what is compared within a group is not looked at
        options = AdvantageOptions(group_size=len(rewards), weights=self._weights, scale_rewards="none")
        return compute_advantages(rewards, options=options).rewards

    def is_best(self, metrics: Mapping[str, float], *, step: int) -> bool:
        """Whether the policy of `step` is better than every one before, so that its checkpoint is kept."""
        reward = metrics.get(REWARD)
        if reward is None or (self._best_reward is not None and reward <= self._best_reward):
            return False
        self._best_reward = self._uncommitted[step] = reward
        return True

    def committed(self, step: int) -> None:
        """The checkpoint of `step` is on disk."""
        reward = self._uncommitted.pop(step, None)
        if reward is not None:
            self._mark_best(step, reward)
