"""Reduces a loss per token to one number: which sum, divided by what.

Each function takes the loss per token ([B, T], or [B, 1] for one value at every token of a sequence), the
[B, T] mask, and [B] how many sequences the episode of each has (None: one). All but `micro_batch_mean` divide
by counts of the whole step, so the losses of the parts of a batch add up to the loss of the batch.
"""

import torch

from grpo_runtime.algorithm.types import Denominators, LossOptions


def sequence_mean(
    loss: torch.Tensor,
    mask: torch.Tensor,
    episode_sizes: torch.Tensor | None,
    denominators: Denominators,
    options: LossOptions,
) -> torch.Tensor:
    """grpo, sapo: each sequence's mean over its tokens, then the mean over the step's sequences
    (arXiv:2402.03300). Each of an episode's s sequences counts 1/s, so an episode counts once."""
    lengths = mask.sum(-1).clamp(min=1)
    means = (loss * mask).sum(-1) / lengths
    if episode_sizes is not None:
        means = means / episode_sizes
    return means.sum() / denominators.num_sequences


def token_mean(
    loss: torch.Tensor,
    mask: torch.Tensor,
    episode_sizes: torch.Tensor | None,
    denominators: Denominators,
    options: LossOptions,
) -> torch.Tensor:
    """dapo, cispo, vespo: the mean over the step's tokens, so that each token weighs the same
    (arXiv:2503.14476)."""
    return (loss * mask).sum() / max(denominators.num_tokens, 1.0)


def micro_batch_mean(
    loss: torch.Tensor,
    mask: torch.Tensor,
    episode_sizes: torch.Tensor | None,
    denominators: Denominators,
    options: LossOptions,
) -> torch.Tensor:
    """bnpo: the mean over this micro-batch's own tokens, then the mean over micro-batches (TRL's definition).

    It depends on how the batch is cut: several ranks compute another number than one rank would.
    """
    return (loss * mask).sum() / mask.sum().clamp(min=1) / denominators.num_micro_batches


def constant_length(
    loss: torch.Tensor,
    mask: torch.Tensor,
    episode_sizes: torch.Tensor | None,
    denominators: Denominators,
    options: LossOptions,
) -> torch.Tensor:
    """dr_grpo: the sum over tokens, divided by sequences times the longest completion allowed
    (arXiv:2503.20783). The divisor counts episodes, so each token weighs the same in however many sequences
    its episode is.

    The constant is TRL's `max_completion_length`. Raises ValueError without it. Some other systems divide by
    another constant, or by none.
    """
    if options.max_completion_length is None:
        raise ValueError("loss_type dr_grpo needs max_completion_length: it divides by it")
    return (loss * mask).sum() / (denominators.num_sequences * options.max_completion_length)


def sequence_sum(
    loss: torch.Tensor,
    mask: torch.Tensor,
    episode_sizes: torch.Tensor | None,
    denominators: Denominators,
    options: LossOptions,
) -> torch.Tensor:
    """luspo: the sum over each sequence's tokens, then the mean over the step's sequences (arXiv:2602.05261).
    The mean is over episodes: the sums of an episode's sequences are added, as they would be in one.

    Meant for `ratio_level` sequence, with one ratio per sequence: a longer sequence then counts for more.
    """
    return (loss * mask).sum() / denominators.num_sequences
