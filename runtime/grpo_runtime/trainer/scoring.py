"""What the completions of a step were worth. B completions, F reward functions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.algorithm.advantages import AdvantageOptions
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.errors import UserError
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rewards.types import RewardFunction, RewardMatrix, RewardRequest
from grpo_runtime.rollout.interface import Rollout

MAX_UNSCORED_STEPS = 3
"""Steps in a row without any reward, because functions failed, before the run ends."""


@dataclass(frozen=True)
class Scores:
    """`rewards` [B, F] are NaN where a function gave none; `metrics` are what the functions logged."""

    rewards: torch.Tensor
    metrics: Mapping[str, float]


class Scorer:
    """Asks the reward functions about the rollouts of a step."""

    def __init__(self, pool: RewardPool, run: RunConfig, *, tokenizer: PreTrainedTokenizerBase) -> None:
        self.names = [reward.name for reward in run.rewards]
        self._pool = pool
        self._group_size = run.algorithm.group_size
        self._total_steps = run.algorithm.steps
        self._tokenizer = tokenizer
        self._num_unscored_steps = 0

    async def score(self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout], *, step: int) -> Scores:
        """The rewards of `rollouts`, which are the groups of `prompts` one after the other.

        Raises UserError when functions failed on every completion for some steps in a row: training would
        go on with nothing to learn from.
        """
        each = [prompt for prompt in prompts for _ in range(self._group_size)]
        matrix = await self._pool.score(
            RewardRequest(
                prompts=[prompt.content for prompt in each],
                completions=[self._text(rollout) for rollout in rollouts],
                completion_ids=[list(rollout.completion_ids) for rollout in rollouts],
                columns={name: [prompt.columns[name] for prompt in each] for name in each[0].columns},
                step=step,
                total_steps=self._total_steps,
            )
        )
        self._refuse_garbage(matrix)
        rows = [[math.nan if value is None else value for value in row] for row in matrix.values]
        return Scores(rewards=torch.tensor(rows, dtype=torch.float32), metrics=matrix.metrics)

    def _text(self, rollout: Rollout) -> str:
        return self._tokenizer.decode(list(rollout.completion_ids), skip_special_tokens=True)

    def _refuse_garbage(self, matrix: RewardMatrix) -> None:
        is_scored = any(value is not None for row in matrix.values for value in row)
        self._num_unscored_steps = 0 if is_scored or not matrix.failures else self._num_unscored_steps + 1
        if self._num_unscored_steps == MAX_UNSCORED_STEPS:
            first = matrix.failures[0]
            raise UserError(
                f"reward function {first.name} failed on every completion of {MAX_UNSCORED_STEPS} steps in a "
                f"row, and no other gave a reward: {first.reason}"
            )


def reward_functions(run: RunConfig) -> tuple[RewardFunction, ...]:
    """The reward functions that a run asks for."""
    return tuple(
        RewardFunction(
            name=reward.name,
            builtin=None if reward.builtin is None else reward.builtin.value,
            function=reward.function,
            timeout_seconds=reward.timeout_seconds,
        )
        for reward in run.rewards
    )


def advantage_options(run: RunConfig) -> AdvantageOptions:
    """How a run turns rewards into advantages."""
    return AdvantageOptions(
        group_size=run.algorithm.group_size,
        weights=tuple(reward.weight for reward in run.rewards),
        scale_rewards=run.algorithm.scale_rewards.value,
    )
