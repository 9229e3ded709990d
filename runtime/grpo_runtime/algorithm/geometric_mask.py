"""The geometric mask: leave out completions to which trainer and sampler give too different a probability."""

import math
from dataclasses import dataclass

import torch

from grpo_runtime.algorithm.importance_correction import sampler_log_ratio
from grpo_runtime.algorithm.metrics import Metrics, mean_of


@dataclass(frozen=True, kw_only=True)
class GeometricMask:
    """Bounds of a sequence's ratio pi_trainer / pi_sampler, which is the geometric mean over its tokens."""

    low: float = 0.99
    high: float = 1.01


def geometric_mask(
    bounds: GeometricMask, *, old_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """[B, 1] bool: false for the sequences to drop, whose exp(mean log(pi_old / pi_sampler)) over the tokens
    under `mask` is outside the bounds.

    The mean, unlike the sum, does not grow with the length (https://richardli.xyz/rl-collapse-3). A token
    that the sampler could not score (NaN) counts as no difference, and a sequence without tokens is not
    dropped.
    """
    length = mask.sum(-1, keepdim=True).clamp(min=1)
    mean = sampler_log_ratio(old_logprobs, rollout_logprobs, mask=mask).sum(-1, keepdim=True) / length
    return (mean >= math.log(bounds.low)) & (mean <= math.log(bounds.high))


def geometric_mask_metrics(is_kept: torch.Tensor, *, mask: torch.Tensor, dtype: torch.dtype) -> Metrics:
    """How much `geometric_mask` has dropped, of the sequences that have tokens and of these tokens."""
    is_dropped = (~is_kept).to(dtype)
    return {
        "mask_ratio/geometric_sequences": mean_of(is_dropped, mask=mask.any(-1, keepdim=True)),
        "mask_ratio/geometric_tokens": mean_of(is_dropped.expand_as(mask), mask=mask),
    }
