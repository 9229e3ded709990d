"""The penalty for leaving the reference policy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, kw_only=True)
class KLPenalty:
    """beta times the estimated divergence from the reference policy, added to every token's loss."""

    beta: float
    estimator: Literal["k1", "k2", "k3"] = "k3"
    is_bias_corrected: bool = False
    """Weigh each token's estimate with the policy ratio, which makes its gradient that of the true KL
    when the tokens come from an older policy (DeepSeek-V3.2, section 3.1). TRL 1.16 has it on by default."""


def kl_k1(log_difference: torch.Tensor) -> torch.Tensor:
    """log(pi / ref): unbiased, high variance, may be negative."""
    return -log_difference


def kl_k2(log_difference: torch.Tensor) -> torch.Tensor:
    """Half the squared log ratio: biased, low variance, and its gradient is the KL's."""
    return 0.5 * log_difference.square()


def kl_k3(log_difference: torch.Tensor) -> torch.Tensor:
    """ref/pi - log(ref/pi) - 1: unbiased and never negative; what TRL and the GRPO paper use."""
    return log_difference.exp() - log_difference - 1


KL_ESTIMATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
"""By name; each takes log(ref / pi). Estimators from http://joschu.net/blog/kl-approx.html."""


def token_kl(
    penalty: KLPenalty, *, trainer_logprobs: torch.Tensor, ref_logprobs: torch.Tensor, ratio: torch.Tensor
) -> torch.Tensor:
    """[B, T] estimated divergence, without beta; `ratio` is the policy ratio, [B, T] or [B, 1]."""
    divergence = KL_ESTIMATORS[penalty.estimator](ref_logprobs - trainer_logprobs)
    return divergence * ratio if penalty.is_bias_corrected else divergence
