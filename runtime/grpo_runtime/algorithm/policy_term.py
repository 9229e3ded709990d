"""The part of a loss that rewards good tokens: what each such idea gets and gives."""

from dataclasses import dataclass

import torch

from grpo_runtime.algorithm.metrics import Metrics


@dataclass(frozen=True, kw_only=True)
class PolicyTermInputs:
    """Finite everywhere: positions outside `mask` were set to zero (ratio one) beforehand."""

    ratio: torch.Tensor
    """[B, T], or [B, 1] at sequence level; with gradient."""
    token_log_ratio: torch.Tensor
    """[B, T], with gradient."""
    trainer_logprobs: torch.Tensor
    """[B, T], with gradient."""
    advantages: torch.Tensor
    """[B]"""
    mask: torch.Tensor
    """[B, T] bool."""
    correction: torch.Tensor | None
    """[B, T] or [B, 1]: the bounded ratio to the sampler, for a term that builds it in itself."""


@dataclass(frozen=True, kw_only=True)
class PolicyTerm:
    loss: torch.Tensor
    """[B, T], or [B, 1] for one value per sequence that counts at each of its tokens."""
    metrics: Metrics
