"""Which groups of a step teach something. P prompts, G completions of each, B = P x G; F reward functions.

DAPO (arXiv:2503.14476, section 3.2) drops groups in which all completions are right or all are wrong, and
samples others in their place.
"""

import torch

from grpo_runtime.algorithm.advantages import compute_advantages
from grpo_runtime.algorithm.types import AdvantageOptions


def differing_groups(rewards: torch.Tensor, *, options: AdvantageOptions) -> torch.Tensor:
    """[P] bool: whether the rewards [B, F] that advantages are made of differ within the group.

    That is the weighted sum, or with `normalize_then_sum` any reward whose weight is not 0. A completion
    without a reward differs from no other. Raises what `compute_advantages` does.
    """
    weighted = compute_advantages(rewards, options=options).rewards[:, None]
    has_weight = torch.tensor([weight != 0 for weight in options.weights], device=rewards.device)
    counting = weighted if options.aggregation == "sum_then_normalize" else rewards[:, has_weight]
    grouped = counting.view(-1, options.group_size, counting.shape[1])
    highest = grouped.nan_to_num(nan=-torch.inf).amax(1)
    lowest = grouped.nan_to_num(nan=torch.inf).amin(1)
    return (highest > lowest).any(1)
