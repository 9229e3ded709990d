"""Which sequences of a step each rank computes together, by a budget of tokens. Pure: every rank knows the
whole batch and finds the same answer without asking another."""

from collections.abc import Sequence
from dataclasses import dataclass

NUM_EMPTY_TOKENS = 2
"""Tokens of an empty micro-batch: the shortest sequence in which one token predicts another."""

Rows = tuple[int, ...]
"""The sequences of one micro-batch, by their index in the batch, longest first."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A step in micro-batches."""

    by_rank: tuple[tuple[Rows, ...], ...]
    """The micro-batches of each rank, as many on every rank and at least one. An empty one only keeps the
    number equal: strategies whose ranks meet in each forward pass would wait for the missing one."""
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


def padding_share(partitions: Sequence[Partition]) -> float:
    """Share of the tokens computed in all of them that are padding."""
    counted = sum(each.counted_tokens for each in partitions)
    return 1 - counted / sum(each.padded_tokens for each in partitions)


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
