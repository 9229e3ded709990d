"""Metrics of a step's rewards, by TRL's names."""

import math

import torch

from grpo_runtime.algorithm.advantage_scaling import nan_std, without_overflow
from grpo_runtime.algorithm.advantages import Advantages


def reward_metrics(rewards: torch.Tensor, *, names: list[str], advantages: Advantages) -> dict[str, float]:
    """rewards/{name}/{mean,std}, reward, reward_std and frac_reward_zero_std of [B, F] rewards.

    `rewards` holds NaN where a function returned None; such values do not count. `reward` and
    `reward_std` are over the weighted sums of the whole batch. A metric without a value, because nothing was
    scored, is left out: the result holds no NaN.
    """
    values = {"frac_reward_zero_std": advantages.is_std_zero.float().mean().item()}
    for name, column in zip(names, without_overflow(rewards).unbind(1), strict=True):
        values[f"rewards/{name}/mean"] = column.nanmean().item()
        values[f"rewards/{name}/std"] = nan_std(column, dim=0).item()
    values["reward"] = advantages.rewards.nanmean().item()
    values["reward_std"] = nan_std(advantages.rewards, dim=0).item()
    return {name: value for name, value in values.items() if math.isfinite(value)}
