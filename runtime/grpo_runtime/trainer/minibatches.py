"""Which sequences of a step are trained on together: each minibatch is one update. Pure, and the same on
every rank."""

import torch

from grpo_runtime.data.seeds import derive_seed

Rows = tuple[int, ...]
"""The sequences of one minibatch, by their index in the batch."""
_OF_NO_PROMPT = -1


def divide_groups(
    num_sequences: int, *, group_size: int, num_minibatches: int, run_seed: int, step: int
) -> tuple[Rows, ...]:
    """Deal whole groups of `group_size` sequences out to the minibatches, in an order that follows from seed
    and step (from 0). One minibatch has all sequences as they are. None is empty: there are fewer where a
    step has fewer groups, as it may with dynamic sampling."""
    if num_minibatches == 1:
        return (tuple(range(num_sequences)),)
    num_groups = num_sequences // group_size
    seed = derive_seed(run_seed, step=step, prompt_index=_OF_NO_PROMPT, sample_index=0)
    groups = torch.randperm(num_groups, generator=torch.Generator().manual_seed(seed)).tolist()
    return tuple(
        tuple(
            row
            for group in groups[first::num_minibatches]
            for row in range(group * group_size, (group + 1) * group_size)
        )
        for first in range(min(num_minibatches, num_groups))
    )
