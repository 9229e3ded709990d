"""Off-policy sequence masking (OPSM): do not learn from mistakes that the policy no longer makes."""

import torch


def off_policy_mask(
    *,
    advantages: torch.Tensor,
    trainer_logprobs: torch.Tensor,
    sampling_logprobs: torch.Tensor,
    mask: torch.Tensor,
    threshold: float,
) -> torch.Tensor:
    """[B, 1] bool: false for the sequences to drop (DeepSeek-V3.2, arXiv:2512.02556, section 3.1).

    Dropped are sequences of negative advantage whose mean log(pi_sampling / pi) per token under `mask`
    exceeds `threshold` nats. `sampling_logprobs` [B, T] are the sampler's where there are any, else the old
    policy's; NaN (unscored) counts as no difference.
    """
    difference = torch.nan_to_num(sampling_logprobs - trainer_logprobs.detach(), nan=0.0)
    mean_difference = (difference * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    return (advantages.unsqueeze(1) >= 0) | (mean_difference <= threshold)
