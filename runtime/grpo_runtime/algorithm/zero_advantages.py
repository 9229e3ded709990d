"""Which sequences of a step change its gradient: the others need not be computed."""

import torch

from grpo_runtime.algorithm.registry import LOSSES, find
from grpo_runtime.algorithm.types import LossOptions


def changes_gradient(advantages: torch.Tensor, *, options: LossOptions) -> torch.Tensor:
    """[B] bool: false for a sequence that the gradient is the same without, when the denominators stay those
    of the whole step.

    `advantages` are [B]. At advantage 0 every policy term and its gradient are 0.
    """
    return (advantages != 0) | needs_zero_advantages(options)


def needs_zero_advantages(options: LossOptions) -> bool:
    """Whether sequences of advantage 0 have a part in the gradient.

    A KL penalty and an entropy bonus are added for every token, the entropy threshold is that of all tokens,
    and a loss that depends on how the batch is cut divides by the tokens of each micro-batch. Raises
    ValueError for an unknown loss.
    """
    loss = find(LOSSES, options.loss_type, option="loss_type")
    is_for_all = options.kl is not None or options.entropy is not None
    return is_for_all or options.top_entropy_quantile < 1.0 or loss.depends_on_cut
