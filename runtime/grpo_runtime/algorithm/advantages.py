"""How much better than its group a completion was. Shapes: B = prompts x G completions, group by group;
F functions."""

from dataclasses import dataclass
from typing import Literal

import torch

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it: TRL's value (verl's is 1e-6)."""


@dataclass(frozen=True, kw_only=True)
class AdvantageOptions:
    group_size: int
    weights: tuple[float, ...]
    """One per reward function; negative turns a reward into a penalty."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Divide by the standard deviation of the group, of the whole batch, or not at all (Dr. GRPO,
    arXiv:2503.20783)."""
    aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    """normalize_then_sum is GDPO (arXiv:2601.05242): each function is normalised in its group, then the
    sum in the batch."""
    baseline: Literal["group_mean", "leave_one_out"] = "group_mean"
    """leave_one_out (RLOO, arXiv:2402.14740) compares a completion with the mean of the *others* of its
    group."""


@dataclass(frozen=True, kw_only=True)
class Advantages:
    advantages: torch.Tensor
    """[B]; 0 for a completion that no function scored."""
    rewards: torch.Tensor
    """[B] weighted sums; NaN for a completion that no function scored."""
    is_std_zero: torch.Tensor
    """[B] bool: the standard deviation in use for this completion was 0, so it teaches nothing."""


def compute_advantages(rewards: torch.Tensor, *, options: AdvantageOptions) -> Advantages:
    """From [B, F] rewards, NaN where a function returned None, to advantages, as TRL 1.16 does it.

    A None counts as 0 in the weighted sum; a completion with nothing but Nones is left out of its group's
    mean and gets advantage 0. Standard deviations are the sample's (Bessel's correction), plus EPSILON.
    Raises ValueError when the shapes do not fit.
    """
    num_samples, num_functions = rewards.shape
    if num_functions != len(options.weights):
        raise ValueError(f"{num_functions} reward functions but {len(options.weights)} weights")
    if num_samples % options.group_size:
        raise ValueError(f"{num_samples} completions are not whole groups of {options.group_size}")
    weighted = _weighted_sum(rewards, rewards, options)
    if options.aggregation == "sum_then_normalize":
        advantages, std = _sum_then_normalize(weighted, options)
    else:
        advantages, std = _normalize_then_sum(rewards, options)
    return Advantages(
        advantages=torch.nan_to_num(advantages, nan=0.0),
        rewards=weighted,
        is_std_zero=torch.isclose(std, torch.zeros_like(std)),
    )


def nan_std(values: torch.Tensor, *, dim: int) -> torch.Tensor:
    """The sample standard deviation of what is not NaN along `dim` (kept); NaN for fewer than two values."""
    count = (~torch.isnan(values)).sum(dim, keepdim=True)
    mean = values.nanmean(dim, keepdim=True)
    variance = (values - mean).square().nanmean(dim, keepdim=True) * count / (count - 1)
    return torch.where(count > 1, variance, torch.nan).sqrt()


def _sum_then_normalize(
    weighted: torch.Tensor, options: AdvantageOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    grouped = weighted.view(-1, options.group_size)
    centred = _centred(grouped, options)
    if options.scale_rewards == "batch":
        std = nan_std(weighted, dim=0).expand_as(weighted)
    else:
        std = nan_std(grouped, dim=1).expand_as(grouped).reshape(-1)
    advantages = centred.reshape(-1)
    return advantages if options.scale_rewards == "none" else advantages / (std + EPSILON), std


def _normalize_then_sum(
    rewards: torch.Tensor, options: AdvantageOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    grouped = rewards.view(-1, options.group_size, rewards.shape[1])
    normalised = (grouped - grouped.nanmean(1, keepdim=True)) / (nan_std(grouped, dim=1) + EPSILON)
    summed = _weighted_sum(normalised.view_as(rewards), rewards, options)
    std = nan_std(summed, dim=0).expand_as(summed)
    return (summed - summed.nanmean()) / (std + EPSILON), std


def _centred(grouped: torch.Tensor, options: AdvantageOptions) -> torch.Tensor:
    centred = grouped - grouped.nanmean(1, keepdim=True)
    if options.baseline == "group_mean":
        return centred
    count = (~torch.isnan(grouped)).sum(1, keepdim=True)
    return centred * count / (count - 1).clamp(min=1)


def _weighted_sum(values: torch.Tensor, rewards: torch.Tensor, options: AdvantageOptions) -> torch.Tensor:
    weights = torch.tensor(options.weights, dtype=values.dtype, device=values.device)
    is_unscored = torch.isnan(rewards).all(1)
    return (values * weights).nansum(1).masked_fill(is_unscored, torch.nan)
