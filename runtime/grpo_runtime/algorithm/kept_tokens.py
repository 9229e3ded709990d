"""Which tokens a sampler that cuts its distribution left to draw from: what top-p, top-k and min-p keep.

With the set S of the tokens kept at a position, the sampler draws y from

    pi_S(y) = pi(y) / sum_{v in S} pi(v),    log pi_S(y) = score_y - logsumexp_{v in S} score_v

The trainer's ratio to it is only right with the same S below both policies: with the whole vocabulary below
one of them, every ratio is too small by the sum over S. vLLM calls S the sampling mask; DeepSeek-V3.2
(arXiv:2512.02556, section 3.1, "Keep Sampling Mask") trains with it.

N positions, K kept tokens of all positions together, V vocabulary.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch


class KeptTokens(NamedTuple):
    """The kept tokens of N positions, one position after the other. Each has at least one."""

    token_ids: torch.Tensor
    """[K] int64."""
    positions: torch.Tensor
    """[K] int64, ascending: the position of each, from 0."""
    offsets: tuple[int, ...]
    """[N + 1]: the tokens of position i are [offsets[i], offsets[i + 1])."""

    def of_rows(self, rows: slice) -> "KeptTokens":
        """The kept tokens of the positions in `rows`, counted from its start."""
        offsets = self.offsets[rows.start : rows.stop + 1]
        tokens = slice(offsets[0], offsets[-1])
        return KeptTokens(
            self.token_ids[tokens],
            self.positions[tokens] - rows.start,
            tuple(offset - offsets[0] for offset in offsets),
        )

    def cut(self, scores: torch.Tensor) -> torch.Tensor:
        """`scores` [N, V] with minus infinity for what was not kept, in place."""
        kept = scores[self.positions, self.token_ids]
        scores.fill_(-torch.inf)[self.positions, self.token_ids] = kept
        return scores


def kept_tokens(masks: Sequence[Sequence[int]], *, device: torch.device | str | None = None) -> KeptTokens:
    """The `masks` of N positions, each a list of distinct token ids. Raises ValueError for an empty one."""
    for position, mask in enumerate(masks):
        if not mask:
            raise ValueError(f"position {position} has no kept token, and so no distribution")
    counts = [len(mask) for mask in masks]
    return KeptTokens(
        torch.tensor([token for mask in masks for token in mask], dtype=torch.int64, device=device),
        torch.arange(len(masks), device=device).repeat_interleave(
            torch.tensor(counts, dtype=torch.int64, device=device)
        ),
        (0, *accumulate(counts)),
    )
