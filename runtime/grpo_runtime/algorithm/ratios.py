"""The importance ratio between the policy being trained and the one before this batch's first update."""

from typing import Literal

import torch


def log_ratio(trainer_logprobs: torch.Tensor, old_logprobs: torch.Tensor | None) -> torch.Tensor:
    """[B, T] log(pi / pi_old). Without `old_logprobs` the policy itself is the old one: zero, with its
    gradient."""
    old = trainer_logprobs.detach() if old_logprobs is None else old_logprobs
    return trainer_logprobs - old


def policy_ratio(
    token_log_ratio: torch.Tensor, *, mask: torch.Tensor, level: Literal["token", "sequence"]
) -> torch.Tensor:
    """The ratio that the loss weighs advantages with: [B, T] per token, or [B, 1] per sequence.

    `sequence` is GSPO's (arXiv:2507.18071, eq. 7): the exponential of the *mean* log ratio over the tokens
    under `mask`, so a sequence of any length has a ratio of the same scale.
    """
    if level == "token":
        return token_log_ratio.exp()
    if level == "sequence":
        length = mask.sum(-1, keepdim=True).clamp(min=1)
        return ((token_log_ratio * mask).sum(-1, keepdim=True) / length).exp()
    raise ValueError(f"ratio_level ({level}) must be token or sequence")
