"""Scores the completions of a step. B completions, F reward functions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_api.source import Volume, VolumeKind
from grpo_api.v1alpha1.spec import CodeRef, RewardSpec
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rewards.types import BuiltinOptions, RewardCode, RewardFunction, RewardRequest
from grpo_runtime.rollout.interface import Rollout


@dataclass(frozen=True)
class Scores:
    """`rewards` [B, F] are NaN where a function gave none; `metrics` are what the functions logged."""

    rewards: torch.Tensor
    metrics: Mapping[str, float]


class Scorer:
    """Asks the reward functions about the rollouts of a step."""

    def __init__(
        self, pool: RewardPool, run_config: RunConfig, *, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self.names = [reward.name for reward in run_config.rewards]
        self._pool = pool
        self._group_size = run_config.algorithm.group_size
        self._total_steps = run_config.algorithm.steps
        self._tokenizer = tokenizer

    async def score(self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout], *, step: int) -> Scores:
        """The rewards of `rollouts`, which are the groups of `prompts` one after the other.

        Raises UserError when a function failed on more completions than it may.
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
        rows = [[math.nan if value is None else value for value in row] for row in matrix.values]
        return Scores(rewards=torch.tensor(rows, dtype=torch.float32), metrics=matrix.metrics)

    def _text(self, rollout: Rollout) -> str:
        return str(self._tokenizer.decode(list(rollout.completion_ids), skip_special_tokens=True))


def reward_functions(run_config: RunConfig, *, volumes_dir: Path) -> tuple[RewardFunction, ...]:
    """The reward functions that a run asks for."""
    return tuple(
        _reward_function(reward, run_config, volumes_dir=volumes_dir) for reward in run_config.rewards
    )


def _reward_function(reward: RewardSpec, run_config: RunConfig, *, volumes_dir: Path) -> RewardFunction:
    return RewardFunction(
        name=reward.name,
        builtin=None if reward.builtin is None else reward.builtin.value,
        function=reward.function,
        code=None if reward.config_map is None else _code(reward.config_map, volumes_dir=volumes_dir),
        options=BuiltinOptions(
            answer_column=run_config.dataset.answer,
            pattern=reward.pattern or "",
            max_tokens=run_config.sampling.max_tokens,
            overlong_tokens=reward.overlong_tokens or 0,
            dataset_source=run_config.dataset.source,
            seed=run_config.algorithm.seed,
        ),
        timeout_seconds=reward.timeout_seconds,
        max_failure_share=reward.max_failure_share,
    )


def _code(code: CodeRef, *, volumes_dir: Path) -> RewardCode:
    folder = volumes_dir / Volume(VolumeKind.CONFIG_MAP, code.name).folder
    return RewardCode(
        path=folder / code.key,
        function=code.function,
        place=f"key {code.key} of ConfigMap {code.name}",
    )


def advantage_options(run_config: RunConfig) -> AdvantageOptions:
    """How a run turns rewards into advantages."""
    return AdvantageOptions(
        group_size=run_config.algorithm.group_size,
        weights=tuple(reward.weight for reward in run_config.rewards),
        scale_rewards=run_config.algorithm.scale_rewards.value,
    )
