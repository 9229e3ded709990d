"""The ratio between the policy being trained and the policy before the first update on this batch."""

from typing import Literal

import torch

LARGEST_LOG_RATIO = 20.0
"""Beyond it a log ratio of two policies is held, without gradient: e^20 is a ratio of half a billion, and
e^89 is infinite in float32. verl bounds the same logarithms by the same number; TRL only those of VESPO."""


def log_ratio(trainer_logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
    """[B, T] log(pi / pi_old) in [-20, 20]. Where the old policy is the policy itself, detached, the value is
    zero and the gradient is the policy's."""
    return (trainer_logprobs - old_logprobs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def policy_ratio(
    token_log_ratio: torch.Tensor, *, mask: torch.Tensor, level: Literal["token", "sequence"]
) -> torch.Tensor:
    """The ratio that advantages are multiplied by: [B, T] per token, or [B, 1] per sequence.

    `sequence` is GSPO's (arXiv:2507.18071, eq. 7): the exponential of the *mean* log ratio over the tokens
    under `mask`, so ratios of short and long sequences have the same scale. Raises ValueError for another
    level.
    """
    if level == "token":
        return token_log_ratio.exp()
    if level == "sequence":
        length = mask.sum(-1, keepdim=True).clamp(min=1)
        return ((token_log_ratio * mask).sum(-1, keepdim=True) / length).exp()
    raise ValueError(f"ratio_level ({level}) must be token or sequence")
