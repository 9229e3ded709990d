"""Logprobs of the chosen tokens, computed without a second tensor of the size of the logits. V vocabulary,
H hidden size."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

CHUNK_TOKENS = 512
"""Rows [V] that are held in float32 at one time."""


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """Logprobs and entropies of one forward pass."""

    logprobs: torch.Tensor
    """[B, T] float32 (float64 for float64 logits), natural logarithm, with gradient."""
    entropies: torch.Tensor
    """[B, T] nats, of the whole distribution at the same temperature, without gradient."""


def token_logprobs(logits: torch.Tensor, *, token_ids: torch.Tensor, temperature: float) -> TokenLogprobs:
    """log softmax(logits / temperature) at `token_ids`: vLLM's processed logprobs without top-p and top-k.

    `logits` [B, T, V] may have any float type, and position t predicts token_ids[:, t]; `token_ids` is
    [B, T]. Beside the logits and their gradient, memory holds CHUNK_TOKENS rows at a time. Raises ValueError
    when the temperature is not above 0.
    """
    if temperature <= 0:
        raise ValueError(
            f"temperature ({temperature}) must be above 0: at 0 the chosen token has no gradient"
        )
    apply: Any = _TokenLogprobs.apply  # torch gives it no types
    logprobs, entropies = apply(logits.flatten(0, 1), token_ids.flatten(), temperature)
    return TokenLogprobs(logprobs=logprobs.view(token_ids.shape), entropies=entropies.view(token_ids.shape))


def chunked_token_logprobs(
    hidden: torch.Tensor,
    *,
    head: torch.nn.Module,
    token_ids: torch.Tensor,
    temperature: float,
    chunk_tokens: int = CHUNK_TOKENS,
) -> TokenLogprobs:
    """The same from the last hidden states [B, T, H], with the logits of `chunk_tokens` positions at a time.

    `head` maps [N, H] to [N, V]. The backward pass computes each chunk's logits again, so neither pass holds
    [B, T, V].
    """

    def of_chunk(part: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = token_logprobs(head(part).unsqueeze(0), token_ids=ids.unsqueeze(0), temperature=temperature)
        return found.logprobs.squeeze(0), found.entropies.squeeze(0)

    parts = [
        checkpoint(of_chunk, part, ids, use_reentrant=False)
        for part, ids in zip(
            hidden.flatten(0, 1).split(chunk_tokens), token_ids.flatten().split(chunk_tokens), strict=True
        )
    ]
    return TokenLogprobs(
        logprobs=torch.cat([part[0] for part in parts]).view(token_ids.shape),
        entropies=torch.cat([part[1] for part in parts]).view(token_ids.shape),
    )


class _TokenLogprobs(torch.autograd.Function):
    """From logits [N, V] and ids [N] to logprobs [N] and entropies [N]. For the backward pass it saves the
    logits and no softmax."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, ids: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        logprobs, entropies = (torch.empty(ids.shape, dtype=dtype, device=logits.device) for _ in range(2))
        for start in range(0, len(ids), CHUNK_TOKENS):
            rows = slice(start, start + CHUNK_TOKENS)
            scores = (logits[rows].to(dtype) / temperature).log_softmax(-1)
            logprobs[rows] = scores.gather(-1, ids[rows, None]).squeeze(-1)
            # 0 log 0 is 0
            entropies[rows] = torch.special.entr(scores.exp_()).sum(-1)
        ctx.save_for_backward(logits, ids)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad_logprobs: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """d logprob / d logits = (onehot - softmax) / temperature."""
        logits, ids = ctx.saved_tensors
        grad = torch.empty_like(logits)
        for start in range(0, len(ids), CHUNK_TOKENS):
            rows = slice(start, start + CHUNK_TOKENS)
            part = (logits[rows].to(grad_logprobs.dtype) / ctx.temperature).softmax(-1).neg_()
            part.scatter_add_(-1, ids[rows, None], torch.ones_like(part[:, :1]))
            grad[rows] = part.mul_(grad_logprobs[rows, None] / ctx.temperature)
        return grad, None, None
