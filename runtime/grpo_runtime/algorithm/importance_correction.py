"""Correct for the sampler: vLLM's probabilities are not the trainer's, even with the same weights."""

from dataclasses import dataclass
from typing import Literal

import torch

from grpo_runtime.algorithm.metrics import Metrics, max_of, mean_of, min_of


@dataclass(frozen=True, kw_only=True)
class ImportanceCorrection:
    """Weigh the policy term with pi_trainer / pi_sampler, bounded.

    `token` + `truncate` is TIS (truncated importance sampling), `token` + `mask` is IcePop; a sequence's
    ratio is the product of its tokens' ratios (not their geometric mean).
    """

    level: Literal["token", "sequence"] = "token"
    bounding: Literal["truncate", "mask"] = "truncate"
    """truncate: a ratio outside [floor, cap] becomes the nearer bound; mask: it becomes 0."""
    floor: float | None = None
    cap: float | None = 3.0


def correction_ratio(
    correction: ImportanceCorrection,
    *,
    old_logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """The bounded ratio, without gradient: [B, T] at token level, [B, 1] at sequence level.

    `old_logprobs` are the trainer's under the weights that sampled. A token that the sampler could not score
    (NaN) has ratio 1, and so has padding.
    """
    difference = _difference(old_logprobs, rollout_logprobs, mask)
    if correction.level == "sequence":
        difference = difference.sum(-1, keepdim=True)
    ratio = difference.exp()
    if correction.floor is None and correction.cap is None:
        return ratio
    if correction.bounding == "truncate":
        return ratio.clamp(min=correction.floor, max=correction.cap)
    is_outside = torch.zeros_like(ratio, dtype=torch.bool)
    if correction.floor is not None:
        is_outside |= ratio < correction.floor
    if correction.cap is not None:
        is_outside |= ratio > correction.cap
    return ratio.masked_fill(is_outside, 0.0)


def correction_metrics(
    ratio: torch.Tensor, *, old_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, mask: torch.Tensor
) -> Metrics:
    """How far the sampler is from the trainer (absolute nats per scored token), and the ratios after
    bounding."""
    difference = _difference(old_logprobs, rollout_logprobs, mask).abs()
    is_scored = mask & ~torch.isnan(rollout_logprobs)
    ratios = ratio if ratio.shape[1] == 1 and mask.shape[1] != 1 else ratio[mask]
    return {
        "sampling/sampling_logp_difference/mean": mean_of(difference, mask=is_scored),
        "sampling/sampling_logp_difference/max": max_of(difference[is_scored]),
        "sampling/importance_sampling_ratio/min": min_of(ratios),
        "sampling/importance_sampling_ratio/mean": mean_of(ratio, mask=mask),
        "sampling/importance_sampling_ratio/max": max_of(ratios),
    }


def _difference(
    old_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    difference = (old_logprobs - rollout_logprobs).detach()
    return torch.where(mask & ~torch.isnan(difference), difference, 0.0)
