"""How the batch of a step is divided: into minibatches, each an update of the optimizer; over the ranks; and
into micro-batches, which a rank computes one after the other.

All of it is pure: every rank has the whole batch and finds the same answer without asking another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from grpo_runtime.algorithm.losses import changes_gradient
from grpo_runtime.algorithm.types import Denominators, LossOptions
from grpo_runtime.data.seeds import derive_seed
from grpo_runtime.trainer.batch import NUM_EMPTY_TOKENS, Batch

Rows = tuple[int, ...]
"""Sequences by their index in what is divided."""
_OF_NO_PROMPT = -1


@dataclass(frozen=True, kw_only=True)
class UpdateParts:
    """One rank's part of one update of the optimizer."""

    micro_batches: tuple[Batch, ...]
    """Micro-batches, as many as on every other rank; where an empty one is among them, it has no token that
    counts."""
    denominators: Denominators
    """Counts of the whole minibatch, also of the sequences that are not computed: the losses of all
    micro-batches of all ranks then add up to the loss of one process."""


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """One rank's part of a step."""

    updates: tuple[UpdateParts, ...]
    """One for each minibatch, in the order in which they are made."""
    metrics: dict[str, float]
    """How the step was cut, the same on every rank."""


def divide_step(
    batch: Batch,
    *,
    options: LossOptions,
    rank: int,
    num_ranks: int,
    budget: int,
    is_packed: bool = False,
    minibatches: Sequence[Sequence[int]] = (),
) -> StepParts:
    """The part of `batch` that `rank` computes, in micro-batches of at most `budget` tokens, of which none is
    padding where it `is_packed`. `minibatches` are the sequences of each, and without them all are one.

    Sequences that change nothing in the gradient are left out.
    """
    parts = [batch] if len(minibatches) <= 1 else [batch.part(rows) for rows in minibatches]
    cuts = [
        partition(
            part.lengths,
            is_counted=changes_gradient(part.advantages, options=options).tolist(),
            num_ranks=num_ranks,
            budget=budget,
            is_packed=is_packed,
        )
        for part in parts
    ]
    updates = tuple(
        UpdateParts(
            micro_batches=tuple(part.part(rows) for rows in cut.by_rank[rank]),
            denominators=Denominators.of_mask(
                part.loss_mask,
                num_sequences=part.num_episodes,
                num_micro_batches=max(1, cut.num_with_sequences),
            ),
        )
        for part, cut in zip(parts, cuts, strict=True)
    )
    is_computed = changes_gradient(batch.advantages, options=options)
    num_computed_tokens = float(batch.loss_mask[is_computed].sum())
    metrics = {
        "batch/micro_batches": float(sum(cut.num_micro_batches for cut in cuts)),
        "batch/padding_share": padding_share(cuts),
        "batch/computed_share": num_computed_tokens / max(1.0, float(batch.loss_mask.sum())),
    }
    return StepParts(updates=updates, metrics=metrics)


def divide_groups(
    group_sizes: Sequence[int], *, num_minibatches: int, run_seed: int, step: int
) -> tuple[tuple[int, ...], ...]:
    """Deal whole groups of so many samples, by their index, out to the minibatches, in an order that follows
    from seed and step (from 0). One minibatch has all samples as they are. None is empty: there are fewer
    where a step has fewer groups, as it may with dynamic sampling."""
    ends = list(accumulate(group_sizes))
    if num_minibatches == 1:
        return (tuple(range(ends[-1])),)
    num_groups = len(group_sizes)
    seed = derive_seed(run_seed, step=step, prompt_index=_OF_NO_PROMPT, sample_index=0)
    groups = torch.randperm(num_groups, generator=torch.Generator().manual_seed(seed)).tolist()
    return tuple(
        tuple(
            sample
            for group in groups[first::num_minibatches]
            for sample in range(ends[group] - group_sizes[group], ends[group])
        )
        for first in range(min(num_minibatches, num_groups))
    )


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A step in micro-batches."""

    by_rank: tuple[tuple[Rows, ...], ...]
    """The micro-batches of each rank, each with its longest sequence first, as many on every rank and at
    least one. An empty one only keeps the number equal: strategies whose ranks meet in each forward pass
    would wait for the missing one."""
    padded_tokens: int
    """Tokens that all ranks compute, padding included. None is padding where sequences share a row."""
    counted_tokens: int
    """Tokens of the sequences themselves."""

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of each rank."""
        return len(self.by_rank[0])

    @property
    def num_with_sequences(self) -> int:
        """Micro-batches of all ranks that are not empty."""
        return sum(bool(rows) for micro_batches in self.by_rank for rows in micro_batches)


def partition(
    lengths: Sequence[int],
    *,
    is_counted: Sequence[bool],
    num_ranks: int,
    budget: int,
    is_packed: bool = False,
) -> Partition:
    """Divide the sequences that count among the ranks, and those of each rank into micro-batches.

    `lengths` are in tokens. Each sequence, longest first, goes to the rank that has the fewest tokens so far,
    so two ranks differ by at most one longest sequence. A micro-batch, padded to its longest sequence or
    `is_packed` without padding, has at most `budget` tokens; a sequence that is longer than that goes alone.
    """
    counted = [row for row, counts in enumerate(is_counted) if counts]
    longest_first = sorted(counted, key=lambda row: (-lengths[row], row))
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    tokens = [0] * num_ranks
    for row in longest_first:
        rank = tokens.index(min(tokens))
        shares[rank].append(row)
        tokens[rank] += lengths[row]
    cut = [_cut(share, lengths, budget=budget, is_packed=is_packed) for share in shares]
    num_micro_batches = max(1, *(len(micro_batches) for micro_batches in cut))
    by_rank = tuple(
        (*micro_batches, *((),) * (num_micro_batches - len(micro_batches))) for micro_batches in cut
    )
    return Partition(
        by_rank=by_rank,
        padded_tokens=sum(
            _computed(rows, lengths, is_packed=is_packed)
            for micro_batches in by_rank
            for rows in micro_batches
        ),
        counted_tokens=sum(tokens),
    )


def _cut(share: Sequence[int], lengths: Sequence[int], *, budget: int, is_packed: bool) -> list[Rows]:
    """The sequences of a rank, longest first, in micro-batches: padded, the first of each has its width."""
    micro_batches: list[list[int]] = []
    width = left = 0
    for row in share:
        needed = lengths[row] if is_packed else width
        if not micro_batches or needed > left:
            micro_batches.append([])
            width = needed = lengths[row]
            left = budget
        micro_batches[-1].append(row)
        left -= needed
    return [tuple(rows) for rows in micro_batches]


def _computed(rows: Rows, lengths: Sequence[int], *, is_packed: bool) -> int:
    """Tokens of a micro-batch, padding included."""
    if not rows:
        return NUM_EMPTY_TOKENS
    return sum(lengths[row] for row in rows) if is_packed else len(rows) * lengths[rows[0]]


def padding_share(partitions: Sequence[Partition]) -> float:
    """Share of the tokens computed in all of them that are padding."""
    counted = sum(each.counted_tokens for each in partitions)
    return 1 - counted / sum(each.padded_tokens for each in partitions)
