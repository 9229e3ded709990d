"""How much better than its group a completion is, which groups have a difference, and the rewards' metrics.

P prompts, G completions of each, B = P x G, group by group; F reward functions.
"""

import math
from dataclasses import dataclass

import torch

from grpo_runtime.algorithm.advantage_scaling import AdvantageScaling, nan_std, without_overflow
from grpo_runtime.algorithm.registry import ADVANTAGE_SCALINGS, find
from grpo_runtime.algorithm.types import AdvantageOptions

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it: TRL's value (verl's is 1e-6)."""


@dataclass(frozen=True, kw_only=True)
class Advantages:
    """What `compute_advantages` returns."""

    advantages: torch.Tensor
    """[B]; 0 for a completion that no function scored."""
    rewards: torch.Tensor
    """[B] weighted sums; NaN for a completion that no function scored. In float64 where float32 may be too
    small for what is computed of them."""
    is_std_zero: torch.Tensor
    """[B] bool: the standard deviation for this completion is 0, so it teaches nothing."""

    def part(self, is_there: torch.Tensor) -> "Advantages":
        """Those of the completions that `is_there` [B] bool has."""
        return Advantages(
            advantages=self.advantages[is_there],
            rewards=self.rewards[is_there],
            is_std_zero=self.is_std_zero[is_there],
        )


def compute_advantages(rewards: torch.Tensor, *, options: AdvantageOptions) -> Advantages:
    """Turn [B, F] rewards, NaN where a function returned None, into advantages, as TRL 1.16 does.

    A None counts as 0 in the weighted sum. A completion that every function returned None for is left out of
    its group's mean and has advantage 0. Standard deviations use Bessel's correction, plus EPSILON.
    Advantages of finite rewards are finite: one that is too large for the type of `rewards` becomes its
    largest. Raises ValueError when the shapes do not fit or an option has no such value.
    """
    num_samples, num_functions = rewards.shape
    if num_functions != len(options.weights):
        raise ValueError(f"{num_functions} reward functions but {len(options.weights)} weights")
    if num_samples % options.group_size:
        raise ValueError(f"{num_samples} completions are not whole groups of {options.group_size}")
    scaling = find(ADVANTAGE_SCALINGS, options.scale_rewards, option="scale_rewards")
    largest = torch.finfo(rewards.dtype).max
    wide = without_overflow(rewards, factor=sum(map(abs, options.weights)))
    weighted = _weighted_sum(wide, wide, options)
    if options.aggregation == "sum_then_normalize":
        advantages, std = _sum_then_normalize(weighted, options, scaling)
    else:
        advantages, std = _normalize_then_sum(wide, options)
    return Advantages(
        advantages=torch.nan_to_num(advantages, nan=0.0).clamp(-largest, largest).to(rewards.dtype),
        rewards=weighted,
        is_std_zero=torch.isclose(std, torch.zeros_like(std)),
    )


def differing_groups(rewards: torch.Tensor, *, options: AdvantageOptions) -> torch.Tensor:
    """[P] bool: whether the rewards [B, F] that advantages are made of differ within the group.

    DAPO (arXiv:2503.14476, section 3.2) drops groups in which all completions are right or all are wrong, and
    samples others in their place. What differs is the weighted sum, or with `normalize_then_sum` any reward
    whose weight is not 0. A completion without a reward differs from no other. Raises what
    `compute_advantages` does.
    """
    weighted = compute_advantages(rewards, options=options).rewards[:, None]
    has_weight = torch.tensor([weight != 0 for weight in options.weights], device=rewards.device)
    counting = weighted if options.aggregation == "sum_then_normalize" else rewards[:, has_weight]
    grouped = counting.view(-1, options.group_size, counting.shape[1])
    highest = grouped.nan_to_num(nan=-torch.inf).amax(1)
    lowest = grouped.nan_to_num(nan=torch.inf).amin(1)
    return (highest > lowest).any(1)


def reward_metrics(rewards: torch.Tensor, *, names: list[str], advantages: Advantages) -> dict[str, float]:
    """rewards/{name}/{mean,std}, reward, reward_std and frac_reward_zero_std of [B, F] rewards, as TRL does.

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


def _sum_then_normalize(
    weighted: torch.Tensor, options: AdvantageOptions, scaling: AdvantageScaling
) -> tuple[torch.Tensor, torch.Tensor]:
    grouped = weighted.view(-1, options.group_size)
    advantages = _centred(grouped, options).reshape(-1)
    std = scaling.std(grouped)
    return advantages / (std + EPSILON) if scaling.is_divided else advantages, std


def _normalize_then_sum(
    rewards: torch.Tensor, options: AdvantageOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    grouped = rewards.view(-1, options.group_size, rewards.shape[1])
    normalised = _minus_mean(grouped, dim=1) / (nan_std(grouped, dim=1) + EPSILON)
    summed = _weighted_sum(normalised.view_as(rewards), rewards, options)
    std = nan_std(summed, dim=0).expand_as(summed)
    return _minus_mean(summed, dim=0) / (std + EPSILON), std


def _minus_mean(values: torch.Tensor, *, dim: int) -> torch.Tensor:
    """The values less their mean along `dim`: exactly 0 where all are equal, also if their mean is rounded.
    Completions of advantage 0 are not computed."""
    is_equal = (values == values.nanmedian(dim, keepdim=True).values) | torch.isnan(values)
    return (values - values.nanmean(dim, keepdim=True)).masked_fill(is_equal.all(dim, keepdim=True), 0.0)


def _centred(grouped: torch.Tensor, options: AdvantageOptions) -> torch.Tensor:
    centred = _minus_mean(grouped, dim=1)
    if options.baseline == "group_mean":
        return centred
    count = (~torch.isnan(grouped)).sum(1, keepdim=True)
    return centred * count / (count - 1).clamp(min=1)


def _weighted_sum(values: torch.Tensor, rewards: torch.Tensor, options: AdvantageOptions) -> torch.Tensor:
    weights = torch.tensor(options.weights, dtype=values.dtype, device=values.device)
    is_unscored = torch.isnan(rewards).all(1)
    return (values * weights).nansum(1).masked_fill(is_unscored, torch.nan)
