"""Rollouts as tensors, and how every rank gets them. B sequences, T tokens: prompt, completion, padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo_runtime.rollout.interface import Rollout
from grpo_runtime.trainer.distributed import Ranks


@dataclass(frozen=True)
class Batch:
    """What every rank trains on in one step. Column t is about token t + 1, which position t predicts."""

    token_ids: torch.Tensor
    """[B, T] int64, padded at the right: under a causal mask padding cannot reach a real token."""
    loss_mask: torch.Tensor
    """[B, T-1] bool, true where token t + 1 is part of the completion."""
    rollout_logprobs: torch.Tensor
    """[B, T-1] float32, the sampler's; 0 outside the mask."""
    advantages: torch.Tensor
    """[B] float32."""

    def part(self, rows: slice) -> "Batch":
        """The sequences of these rows."""
        return Batch(
            self.token_ids[rows], self.loss_mask[rows], self.rollout_logprobs[rows], self.advantages[rows]
        )

    def to(self, device: torch.device) -> "Batch":
        """The same batch on the device of the policy."""
        return Batch(
            self.token_ids.to(device),
            self.loss_mask.to(device),
            self.rollout_logprobs.to(device),
            self.advantages.to(device),
        )


def micro_batches(batch: Batch, *, max_logits: int, vocab_size: int) -> list[Batch]:
    """`batch` in pieces whose logits have at most `max_logits` elements, but at least one sequence each."""
    num_sequences, width = batch.token_ids.shape
    size = max(1, max_logits // (width * vocab_size))
    return [batch.part(slice(start, start + size)) for start in range(0, num_sequences, size)]


def make_batch(rollouts: Sequence[Rollout], *, advantages: torch.Tensor, pad_id: int) -> Batch:
    """Pad `rollouts` to one rectangle; `advantages` [B] are in the same order."""
    width = max(len(rollout.prompt_ids) + len(rollout.completion_ids) for rollout in rollouts)
    token_ids = torch.full((len(rollouts), width), pad_id, dtype=torch.int64)
    loss_mask = torch.zeros((len(rollouts), width - 1), dtype=torch.bool)
    rollout_logprobs = torch.zeros((len(rollouts), width - 1), dtype=torch.float32)
    for row, rollout in enumerate(rollouts):
        tokens = rollout.prompt_ids + rollout.completion_ids
        token_ids[row, : len(tokens)] = torch.tensor(tokens)
        completion = slice(len(rollout.prompt_ids) - 1, len(tokens) - 1)
        loss_mask[row, completion] = True
        rollout_logprobs[row, completion] = torch.tensor(rollout.rollout_logprobs)
    return Batch(token_ids, loss_mask, rollout_logprobs, advantages.to(torch.float32))


def send_batch(batch: Batch, *, ranks: Ranks) -> None:
    """Rank 0: send the batch to every other rank, which waits in `receive_batch`."""
    ranks.broadcast(torch.tensor(batch.token_ids.shape))
    for tensor in (
        batch.token_ids,
        batch.loss_mask.to(torch.uint8),
        batch.rollout_logprobs,
        batch.advantages,
    ):
        ranks.broadcast(tensor)


def receive_batch(*, ranks: Ranks) -> Batch:
    """Every other rank: the batch that rank 0 sends."""
    num_sequences, width = ranks.broadcast(torch.zeros(2, dtype=torch.int64)).tolist()
    shape = (num_sequences, width - 1)
    return Batch(
        token_ids=ranks.broadcast(torch.empty((num_sequences, width), dtype=torch.int64)),
        loss_mask=ranks.broadcast(torch.empty(shape, dtype=torch.uint8)).bool(),
        rollout_logprobs=ranks.broadcast(torch.empty(shape, dtype=torch.float32)),
        advantages=ranks.broadcast(torch.empty(num_sequences, dtype=torch.float32)),
    )
