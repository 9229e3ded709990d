"""Correct for the sampler: even with the same weights, vLLM's probabilities differ from the trainer's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from grpo_runtime.algorithm.kl import kl_k1, kl_k3
from grpo_runtime.algorithm.metrics import Metrics, max_of, mean_of, min_of
from grpo_runtime.algorithm.ratios import LARGEST_LOG_RATIO

Bound = Callable[[torch.Tensor, float | None, float | None], torch.Tensor]
"""Maps a ratio, its floor and its cap (None: no such bound) to the bounded ratio of the same shape."""


@dataclass(frozen=True, kw_only=True)
class ImportanceCorrection:
    """Multiply the policy term by the bounded ratio pi_trainer / pi_sampler.

    Level `token` with mode `truncate` is TIS (truncated importance sampling), with mode `mask` it is IcePop.
    A sequence's ratio is the product of its tokens' ratios, not their geometric mean.
    """

    level: Literal["token", "sequence"] = "token"
    mode: str = "truncate"
    """How the ratio is bounded: a name in `registry.CORRECTION_MODES`."""
    floor: float | None = None
    cap: float | None = 3.0


def truncate(ratio: torch.Tensor, floor: float | None, cap: float | None) -> torch.Tensor:
    """A ratio outside [floor, cap] becomes the nearer bound."""
    return ratio.clamp(min=floor, max=cap)


def mask_outside(ratio: torch.Tensor, floor: float | None, cap: float | None) -> torch.Tensor:
    """A ratio outside [floor, cap] becomes 0, so nothing is learned there."""
    is_outside = torch.zeros_like(ratio, dtype=torch.bool)
    if floor is not None:
        is_outside |= ratio < floor
    if cap is not None:
        is_outside |= ratio > cap
    return ratio.masked_fill(is_outside, 0.0)


def correction_ratio(
    correction: ImportanceCorrection,
    *,
    bound: Bound,
    old_logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """The bounded ratio, without gradient: [B, T] at token level, [B, 1] at sequence level.

    `old_logprobs` are the trainer's, under the weights that sampled. Padding has ratio 1, and so has a token
    that the sampler could not score (NaN).
    """
    difference = sampler_log_ratio(old_logprobs, rollout_logprobs, mask=mask)
    if correction.level == "sequence":
        difference = difference.sum(-1, keepdim=True)
    ratio = difference.exp()
    if correction.floor is None and correction.cap is None:
        return ratio
    return bound(ratio, correction.floor, correction.cap)


def sampler_log_ratio(
    old_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, *, mask: torch.Tensor
) -> torch.Tensor:
    """[B, T] log(pi_old / pi_sampler), without gradient; 0 outside `mask` and where the sampler could not
    score."""
    difference = (old_logprobs - rollout_logprobs).detach()
    return torch.where(mask & ~torch.isnan(difference), difference, 0.0)


def distance_metrics(
    *,
    old_logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor,
    mask: torch.Tensor,
    is_current: torch.Tensor | None = None,
) -> Metrics:
    """The distance between sampler and trainer, in nats per scored token.

    The absolute differences are over the tokens that `is_current` [B, T]: with the same weights only numerics
    differ. `mismatch_kl` is KL(sampler || trainer) over all tokens, whatever weights sampled them.
    """
    log_ratio = sampler_log_ratio(old_logprobs, rollout_logprobs, mask=mask)
    difference = log_ratio.abs()
    is_scored = mask & ~torch.isnan(rollout_logprobs)
    is_compared = is_scored if is_current is None else is_scored & is_current
    bounded = log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return {
        "sampling/sampling_logp_difference/mean": mean_of(difference, mask=is_compared),
        "sampling/sampling_logp_difference/max": max_of(difference[is_compared]),
        "sampling/mismatch_kl/k1": mean_of(kl_k1(bounded), mask=is_scored),
        "sampling/mismatch_kl/k3": mean_of(kl_k3(bounded), mask=is_scored),
    }


def ratio_metrics(ratio: torch.Tensor, *, mask: torch.Tensor) -> Metrics:
    """The bounded ratios of `correction_ratio`."""
    ratios = ratio if ratio.shape[1] == 1 and mask.shape[1] != 1 else ratio[mask]
    return {
        "sampling/importance_sampling_ratio/min": min_of(ratios),
        "sampling/importance_sampling_ratio/mean": mean_of(ratio, mask=mask),
        "sampling/importance_sampling_ratio/max": max_of(ratios),
    }
