"""The trust-region mask: stop pushing a token that has already moved far from the sampler (DPPO)."""

from dataclasses import dataclass

import torch

from grpo_runtime.algorithm.metrics import Metrics, mean_of


@dataclass(frozen=True, kw_only=True)
class TrustRegionMask:
    """How far the probability of a token may be from the sampler's, as a difference of probabilities."""

    low: float = 0.2
    """Below the sampler's, where the advantage is negative."""
    high: float = 0.2
    """Above the sampler's, where the advantage is positive."""


def trust_region_mask(
    bounds: TrustRegionMask,
    *,
    trainer_logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor,
    advantages: torch.Tensor,
) -> torch.Tensor:
    """[B, T] bool: false for the tokens to drop (DPPO with the binary total variation, arXiv:2602.04879).

    A token is dropped when its advantage is positive and pi - pi_sampler is above `high`, or when its
    advantage is negative and pi - pi_sampler is below -`low`. A ratio of probabilities, which PPO bounds, is
    large for a rare token long before the policy is another. `advantages` are [B]; a token that the sampler
    could not score (NaN) is not dropped.
    """
    moved = torch.nan_to_num(trainer_logprobs.detach().exp() - rollout_logprobs.exp(), nan=0.0)
    advantages = advantages.unsqueeze(1)
    return ~(((advantages > 0) & (moved > bounds.high)) | ((advantages < 0) & (moved < -bounds.low)))


def trust_region_metrics(is_kept: torch.Tensor, *, advantages: torch.Tensor, mask: torch.Tensor) -> Metrics:
    """How many of the tokens under `mask` `trust_region_mask` has dropped, beyond either bound."""
    advantages = advantages.unsqueeze(1)
    return {
        f"mask_ratio/trust_region_{bound}": mean_of((~is_kept & has_sign).to(advantages.dtype), mask=mask)
        for bound, has_sign in (("low", advantages < 0), ("high", advantages > 0))
    }
