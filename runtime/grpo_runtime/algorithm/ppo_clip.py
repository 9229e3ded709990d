"""PPO's clipped surrogate: a ratio beyond the clip range brings no further gain."""

import torch

from grpo_runtime.algorithm.metrics import Metrics, max_of, mean_of, min_of, sequence_means
from grpo_runtime.algorithm.types import LossOptions, PolicyTerm, PolicyTermInputs


def ppo_clip(inputs: PolicyTermInputs, options: LossOptions) -> PolicyTerm:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), [B, T] or [B, 1] like the ratio r.

    PPO (arXiv:1707.06347, eq. 7) with DAPO's separate upper bound (arXiv:2503.14476, eq. 10). `delta` bounds
    r above also where A < 0 (INTELLECT-2, arXiv:2505.07291); `dual_clip` bounds the objective below by
    dual_clip * A there (arXiv:1912.09729, eq. 5; verl's clip_ratio_c).
    """
    advantages = inputs.advantages.unsqueeze(1)
    clipped = inputs.ratio.clamp(1 - options.clip_low, 1 + options.clip_high)
    ratio = inputs.ratio if options.delta is None else inputs.ratio.clamp(max=options.delta)
    objective = torch.min(ratio * advantages, clipped * advantages)
    if options.dual_clip is not None:
        objective = torch.where(
            advantages < 0, torch.max(objective, options.dual_clip * advantages), objective
        )
    return PolicyTerm(loss=-objective, metrics=_clip_metrics(ratio, advantages, inputs.mask, options))


def _clip_metrics(
    ratio: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, options: LossOptions
) -> Metrics:
    is_low = ((ratio < 1 - options.clip_low) & (advantages < 0)).to(ratio.dtype)
    is_high = ((ratio > 1 + options.clip_high) & (advantages > 0)).to(ratio.dtype)
    return {
        "clip_ratio/low_mean": mean_of(is_low, mask=mask),
        "clip_ratio/low_min": min_of(sequence_means(is_low, mask=mask)),
        "clip_ratio/high_mean": mean_of(is_high, mask=mask),
        "clip_ratio/high_max": max_of(sequence_means(is_high, mask=mask)),
        "clip_ratio/region_mean": mean_of(is_low + is_high, mask=mask),
    }
