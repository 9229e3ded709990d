"""The penalty for leaving the reference policy. The estimators are those of
http://joschu.net/blog/kl-approx.html."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from grpo_runtime.algorithm.ratios import LARGEST_LOG_RATIO


@dataclass(frozen=True, kw_only=True)
class KLPenalty:
    """`beta` times the estimated divergence from the reference policy, added to every token's loss."""

    beta: float
    estimator: str = "k3"
    """A name in `registry.KL_ESTIMATORS`."""
    is_bias_corrected: bool = False
    """Multiply each token's estimate by the policy ratio. Its gradient is then that of the true KL also when
    the tokens come from an older policy (DeepSeek-V3.2, section 3.1). TRL 1.16 does so by default."""


def kl_k1(log_difference: torch.Tensor) -> torch.Tensor:
    """log(pi / ref): unbiased, high variance, may be negative."""
    return -log_difference


def kl_k2(log_difference: torch.Tensor) -> torch.Tensor:
    """Half the squared log ratio: biased, low variance, and its gradient is the KL's."""
    return 0.5 * log_difference.square()


def kl_k3(log_difference: torch.Tensor) -> torch.Tensor:
    """ref/pi - log(ref/pi) - 1: unbiased and never negative; what TRL and the GRPO paper use."""
    return log_difference.exp() - log_difference - 1


def token_kl(
    estimator: Callable[[torch.Tensor], torch.Tensor],
    *,
    trainer_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    bias_correction: torch.Tensor | None,
) -> torch.Tensor:
    """[B, T] estimated divergence, without beta. Logarithms are bounded as those of the policy ratio are.

    `bias_correction` is the policy ratio to multiply by, [B, T] or [B, 1], or None.
    """
    difference = (ref_logprobs - trainer_logprobs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    divergence = estimator(difference)
    return divergence if bias_correction is None else divergence * bias_correction
