"""Rollouts as tensors, and how every rank gets them. B sequences, T tokens: prompt, completion, padding.

A sample is an episode, of one sequence or of several: each of them has a row.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.trainer.distributed import Ranks

NUM_EMPTY_TOKENS = 2
"""Tokens of a batch without sequences: the shortest one in which one token predicts another."""


@dataclass(frozen=True)
class Batch:
    """What every rank trains on in one step. Column t is about token t + 1, which position t predicts."""

    token_ids: torch.Tensor
    """[B, T] int64, padded at the right: under a causal mask padding cannot reach a real token."""
    loss_mask: torch.Tensor
    """[B, T-1] bool, true where token t + 1 is part of the completion, and was sampled."""
    rollout_logprobs: torch.Tensor
    """[B, T-1] float32, the sampler's; 0 outside the mask."""
    advantages: torch.Tensor
    """[B] float32, each that of its episode."""
    episodes: torch.Tensor
    """[B] int64: the episode of each sequence, by its index among the samples of the step."""
    episode_sizes: torch.Tensor
    """[B] int64: how many sequences its episode has, wherever these are computed."""
    groups: torch.Tensor
    """[B] int64: the group of its episode, from 0."""
    is_current: torch.Tensor
    """[B, T-1] bool, false where other weights sampled token t + 1 than those that the step begins with; true
    outside the mask."""

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each sequence up to the last that counts, at least those of an empty micro-batch."""
        ends = torch.arange(2, self.token_ids.shape[1] + 1)
        lengths: list[int] = torch.where(self.loss_mask, ends, NUM_EMPTY_TOKENS).amax(1).tolist()
        return lengths

    @property
    def num_episodes(self) -> int:
        """Episodes of which it has a sequence."""
        return len(self.episodes.unique())

    @property
    def group_sizes(self) -> list[int]:
        """Episodes of each group, of a whole batch."""
        group_of = dict(zip(self.episodes.tolist(), self.groups.tolist(), strict=True))
        return list(Counter(group_of.values()).values())

    def rows_of(self, episodes: Sequence[int]) -> tuple[int, ...]:
        """The sequences of these episodes, episode by episode."""
        rows = defaultdict[int, list[int]](list)
        for row, episode in enumerate(self.episodes.tolist()):
            rows[episode].append(row)
        return tuple(row for episode in episodes for row in rows[episode])

    def part(self, rows: Sequence[int]) -> "Batch":
        """These sequences, as wide as the longest of them; without rows, one in which no token counts."""
        if not rows:
            return Batch(
                token_ids=torch.zeros((1, NUM_EMPTY_TOKENS), dtype=torch.int64),
                loss_mask=torch.zeros((1, NUM_EMPTY_TOKENS - 1), dtype=torch.bool),
                rollout_logprobs=torch.zeros((1, NUM_EMPTY_TOKENS - 1)),
                advantages=torch.zeros(1),
                episodes=torch.zeros(1, dtype=torch.int64),
                episode_sizes=torch.ones(1, dtype=torch.int64),
                groups=torch.zeros(1, dtype=torch.int64),
                is_current=torch.ones((1, NUM_EMPTY_TOKENS - 1), dtype=torch.bool),
            )
        width = max(self.lengths[row] for row in rows)
        index = torch.tensor(rows)
        return Batch(
            self.token_ids[index, :width],
            self.loss_mask[index, : width - 1],
            self.rollout_logprobs[index, : width - 1],
            self.advantages[index],
            self.episodes[index],
            self.episode_sizes[index],
            self.groups[index],
            self.is_current[index, : width - 1],
        )

    def to(self, device: torch.device) -> "Batch":
        """The same batch on the device of the policy."""
        return Batch(
            self.token_ids.to(device),
            self.loss_mask.to(device),
            self.rollout_logprobs.to(device),
            self.advantages.to(device),
            self.episodes.to(device),
            self.episode_sizes.to(device),
            self.groups.to(device),
            self.is_current.to(device),
        )


def make_batch(
    samples: Sequence[Rollout],
    *,
    group_sizes: Sequence[int],
    advantages: torch.Tensor,
    pad_id: int,
    masks_truncated: bool = False,
    step: int | None = None,
) -> Batch:
    """Pad the sequences of `samples`, sample by sample, to one rectangle; `advantages` has one for each
    sample, and `group_sizes` the samples of each group, one after the other. With
    `masks_truncated` no token counts of an episode whose end was cut at the token limit (DAPO's overlong
    filtering, arXiv:2503.14476, section 3.4). The policy has done `step` steps, and tokens that it sampled
    before are not current; without it all are."""
    rollouts = [sequence for sample in samples for sequence in sample.sequences]
    sizes = torch.tensor([1 + len(sample.branches) for sample in samples])
    episodes = torch.arange(len(samples)).repeat_interleave(sizes)
    of_groups = torch.tensor(group_sizes)
    groups = torch.arange(len(of_groups)).repeat_interleave(of_groups)
    starts = torch.tensor([len(rollout.prompt_ids) for rollout in rollouts]).unsqueeze(1)
    ends = starts + torch.tensor([len(rollout.completion_ids) for rollout in rollouts]).unsqueeze(1)
    columns = torch.arange(int(ends.max()))
    # all sequences end to end, and then each to its place: a tensor for each of them takes far longer
    token_ids = torch.full((len(rollouts), len(columns)), pad_id, dtype=torch.int64)
    token_ids[columns < ends] = _joined(
        (rollout.prompt_ids + rollout.completion_ids for rollout in rollouts), dtype=torch.int64
    )
    is_completion = ((starts <= columns) & (columns < ends))[:, 1:]
    rollout_logprobs = torch.zeros(is_completion.shape, dtype=torch.float32)
    rollout_logprobs[is_completion] = _joined(
        (rollout.rollout_logprobs for rollout in rollouts), dtype=torch.float32
    )
    loss_mask = is_completion.clone()
    for row, (rollout, episode) in enumerate(zip(rollouts, episodes.tolist(), strict=True)):
        if masks_truncated and not samples[episode].last.is_terminated:
            loss_mask[row] = False
        elif rollout.loss_mask is not None:
            loss_mask[row, is_completion[row]] = torch.tensor(rollout.loss_mask)
    return Batch(
        token_ids,
        loss_mask,
        rollout_logprobs,
        advantages.to(torch.float32)[episodes],
        episodes,
        sizes[episodes],
        groups[episodes],
        _current_tokens(rollouts, starts=starts, width=len(columns), step=step),
    )


def _current_tokens(
    rollouts: Sequence[Rollout], *, starts: torch.Tensor, width: int, step: int | None
) -> torch.Tensor:
    """[B, T-1] as `Batch.is_current`; `starts` [B, 1] are where the completions begin. An attempt continues
    with the same weights after as many steps, so it is not compared."""
    is_current = torch.ones((len(rollouts), width - 1), dtype=torch.bool)
    for row, rollout in enumerate(rollouts):
        first = int(starts[row]) - 1
        for span in rollout.versions:
            if step is not None and span.version.step != step:
                is_current[row, first + span.start : first + span.end] = False
    return is_current


def _joined(parts: Iterable[tuple[float, ...]], *, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(list(itertools.chain.from_iterable(parts)), dtype=dtype)


def send_batch(batch: Batch, *, ranks: Ranks) -> None:
    """Rank 0: send the batch to every other rank, which waits in `receive_batch`."""
    ranks.position.at("sends the batch to the other ranks")
    ranks.broadcast(torch.tensor(batch.token_ids.shape))
    for tensor in (
        batch.token_ids,
        batch.loss_mask.to(torch.uint8),
        batch.rollout_logprobs,
        batch.advantages,
        batch.episodes,
        batch.episode_sizes,
        batch.groups,
        batch.is_current.to(torch.uint8),
    ):
        ranks.broadcast(tensor)


def receive_batch(*, ranks: Ranks) -> Batch:
    """Every other rank: the batch that rank 0 sends."""
    ranks.position.at("waits for the batch of rank 0")
    num_sequences, width = ranks.broadcast(torch.zeros(2, dtype=torch.int64)).tolist()
    shape = (num_sequences, width - 1)
    return Batch(
        token_ids=ranks.broadcast(torch.empty((num_sequences, width), dtype=torch.int64)),
        loss_mask=ranks.broadcast(torch.empty(shape, dtype=torch.uint8)).bool(),
        rollout_logprobs=ranks.broadcast(torch.empty(shape, dtype=torch.float32)),
        advantages=ranks.broadcast(torch.empty(num_sequences, dtype=torch.float32)),
        episodes=ranks.broadcast(torch.empty(num_sequences, dtype=torch.int64)),
        episode_sizes=ranks.broadcast(torch.empty(num_sequences, dtype=torch.int64)),
        groups=ranks.broadcast(torch.empty(num_sequences, dtype=torch.int64)),
        is_current=ranks.broadcast(torch.empty(shape, dtype=torch.uint8)).bool(),
    )
