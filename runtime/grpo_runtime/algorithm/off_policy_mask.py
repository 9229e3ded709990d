"""Off-policy sequence masking (OPSM): ignore mistakes that the policy no longer makes."""

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

    A sequence is dropped when its advantage is negative and its mean log(pi_sampling / pi) per token under
    `mask` is above `threshold` nats. `sampling_logprobs` [B, T] are the sampler's, or the old policy's if the
    sampler gave none; NaN (not scored) counts as no difference.
    """
    difference = torch.nan_to_num(sampling_logprobs - trainer_logprobs.detach(), nan=0.0)
    mean_difference = (difference * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    return (advantages.unsqueeze(1) >= 0) | (mean_difference <= threshold)
