"""Logprobs and entropies the plain way: autograd through a softmax of the logits of all positions."""

import torch


def dense_logprobs(
    logits: torch.Tensor, *, token_ids: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """[...] of logits [..., V] and `token_ids` [...]; at least float32."""
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    log_softmax = scores.log_softmax(-1)
    logprobs = log_softmax.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    # 0 log 0 is 0
    return logprobs, torch.special.entr(log_softmax.exp()).sum(-1)
