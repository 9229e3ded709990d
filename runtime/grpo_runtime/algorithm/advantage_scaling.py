"""The standard deviation that advantages are divided by. P prompts, G completions of each, B = P x G."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class AdvantageScaling:
    """Which rewards the standard deviation is taken over, and whether advantages are divided by it."""

    std: Callable[[torch.Tensor], torch.Tensor]
    """Maps rewards [P, G] to [B]: the standard deviation for each completion."""
    is_divided: bool = True
    """False for Dr. GRPO (arXiv:2503.20783), which only subtracts the mean. The standard deviation then only
    shows which groups have no advantages."""


def group_std(grouped: torch.Tensor) -> torch.Tensor:
    """[B]: each group's own standard deviation (GRPO, arXiv:2402.03300)."""
    return nan_std(grouped, dim=1).expand_as(grouped).reshape(-1)


def batch_std(grouped: torch.Tensor) -> torch.Tensor:
    """[B]: the standard deviation of all rewards of the step."""
    rewards = grouped.reshape(-1)
    return nan_std(rewards, dim=0).expand_as(rewards)


_LARGEST = 2.0**50
"""Squares of float32 numbers up to this, and sums of them over a step, are far from float32's largest."""


def without_overflow(values: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
    """The values as they are, or in float64 where the squares of `factor` times them, or sums of these, may
    be too large for float32."""
    return values.double() if (values.abs() > _LARGEST / max(factor, 1.0)).any() else values


def nan_std(values: torch.Tensor, *, dim: int) -> torch.Tensor:
    """The standard deviation of the values along `dim` (kept) that are not NaN, with Bessel's correction.

    NaN where there are fewer than two such values.
    """
    count = (~torch.isnan(values)).sum(dim, keepdim=True)
    mean = values.nanmean(dim, keepdim=True)
    variance = (values - mean).square().nanmean(dim, keepdim=True) * count / (count - 1)
    return torch.where(count > 1, variance, torch.nan).sqrt()
