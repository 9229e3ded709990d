"""The policy term, the part of a loss that makes good tokens more likely: its inputs and its result."""

from dataclasses import dataclass

import torch

from grpo_runtime.algorithm.metrics import Metrics


@dataclass(frozen=True, kw_only=True)
class PolicyTermInputs:
    """Finite everywhere: logprobs outside `mask` are zero, so the ratio there is one."""

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
    """[B, T] or [B, 1]: the bounded ratio to the sampler, for a term that multiplies by it itself; None
    without a correction."""


@dataclass(frozen=True, kw_only=True)
class PolicyTerm:
    """What a policy term returns."""

    loss: torch.Tensor
    """[B, T], or [B, 1] for one value that counts at every token of the sequence."""
    metrics: Metrics
