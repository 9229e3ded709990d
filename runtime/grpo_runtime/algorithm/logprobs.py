"""Logprobs of the chosen tokens from hidden states, without the logits of all positions at one time.

N positions, H hidden size, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from grpo_runtime.algorithm.kept_tokens import KeptTokens

CHUNK_LOGITS = 1 << 25
"""Logits of a chunk, but at least those of one position: 128 MiB in float32. A pass holds two of them, and
three where the entropy of a model with a softcap has a gradient."""


class TokenLogprobs(NamedTuple):
    """Logprobs and entropies of one forward pass. A tuple, in which sharding hooks find the tensors."""

    logprobs: torch.Tensor
    """[N] float32 (float64 for float64 weights), natural logarithm, with gradient."""
    entropies: torch.Tensor
    """[N] nats, of the same distribution as the logprobs; with gradient where that is asked for."""


def head_logprobs(
    hidden: torch.Tensor,
    *,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    token_ids: torch.Tensor,
    temperature: float,
    scale: float = 1.0,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
    chunk_logits: int = CHUNK_LOGITS,
    has_entropy_gradient: bool = False,
    kept: KeptTokens | None = None,
) -> TokenLogprobs:
    """log softmax(logits / temperature) at `token_ids`: vLLM's processed logprobs without top-p and top-k, or
    with them where `kept` says which tokens of each position they leave.

    The logits of `hidden` [N, H] are `scale` x (hidden weight^T + bias), and with a `softcap` c they are
    c tanh(logits / c). `weight` is [V, H], `bias` [V], `token_ids` [N]. The products are computed in `dtype`,
    by default that of the weight, and all else in float32, in float64 for float64.

    No tensor of either pass has more than `chunk_logits` logits: the backward pass computes them again, and
    adds the gradient of the weight up chunk by chunk. With no position every gradient is 0. A token that is
    not among its kept ones has the logprob minus infinity. Raises ValueError when the temperature is not
    above 0, and when `kept` is of another number of positions.
    """
    if temperature <= 0:
        raise ValueError(
            f"temperature ({temperature}) must be above 0: at 0 the chosen token has no gradient"
        )
    if kept is not None and len(kept.offsets) != len(token_ids) + 1:
        raise ValueError(f"kept tokens of {len(kept.offsets) - 1} positions for {len(token_ids)} tokens")
    shaping = _Shaping(
        scale=scale,
        softcap=softcap,
        temperature=temperature,
        dtype=dtype or weight.dtype,
        num_rows=max(1, chunk_logits // len(weight)),
        has_entropy_gradient=has_entropy_gradient,
        kept=kept,
    )
    apply: Any = _HeadLogprobs.apply  # torch gives it no types
    return TokenLogprobs(*apply(hidden, weight, bias, token_ids, shaping))


class _Shaping(NamedTuple):
    """Turns the product of a hidden state and the weight into the scores, of which the softmax is taken."""

    scale: float
    softcap: float | None
    temperature: float
    dtype: torch.dtype
    """Dtype of the products."""
    num_rows: int
    """Positions in a chunk."""
    has_entropy_gradient: bool
    kept: KeptTokens | None

    @property
    def softmax_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def scores(
        self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, rows: slice
    ) -> torch.Tensor:
        """[rows, V] of the hidden states [rows, H], in memory of its own."""
        scores = torch.nn.functional.linear(hidden, weight, bias).to(self.softmax_dtype)
        if self.scale != 1:
            scores.mul_(self.scale)
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.temperature != 1:
            scores.div_(self.temperature)
        return scores if self.kept is None else self.kept.of_rows(rows).cut(scores)

    def scores_gradient(
        self,
        scores: torch.Tensor,
        ids: torch.Tensor,
        grad_logprobs: torch.Tensor,
        grad_entropies: torch.Tensor,
        entropies: torch.Tensor | None,
    ) -> torch.Tensor:
        """The gradient of the `scores` [rows, V], of which those with a softcap are kept.

        d logprob / d score = onehot - p, and with `entropies` d entropy / d score = -p (log p + entropy).
        """
        probabilities = scores.softmax(-1)
        factor = (grad_logprobs / self.temperature).unsqueeze(-1)
        if entropies is None:
            return probabilities.mul_(-factor).scatter_add_(-1, ids, factor)
        of_entropy = (grad_entropies / self.temperature).unsqueeze(-1)
        # -p log p, which is 0 at 0
        spare = torch.empty_like(scores) if self.softcap is not None else scores
        grad: torch.Tensor = torch.special.entr(probabilities, out=spare).mul_(of_entropy)
        grad.sub_(probabilities.mul_(factor + of_entropy * entropies.unsqueeze(-1)))
        return grad.scatter_add_(-1, ids, factor)

    def logits_gradient(self, grad: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The gradient of the product, from that of the `scores`. Both tensors are used up."""
        if self.softcap is not None:
            # what was not kept is minus infinity, and its gradient is 0
            tanh = scores.mul_(self.temperature / self.softcap).clamp_(-1, 1)
            grad.mul_(tanh.square_().neg_().add_(1))
        return grad.mul_(self.scale) if self.scale != 1 else grad


class _HeadLogprobs(torch.autograd.Function):
    """Computes logprobs [N] and entropies [N] of hidden [N, H], weight [V, H], bias [V] and ids [N].

    For the backward pass it saves its inputs, entropies that have a gradient, and nothing else. The weight is
    saved as the parameter that it is, so that what shards it may take it away in between and put it together
    again.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - torch passes everything by position
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        ids: torch.Tensor,
        shaping: _Shaping,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropies = (hidden.new_empty(len(ids), dtype=shaping.softmax_dtype) for _ in range(2))
        cast_weight, cast_bias = _cast(weight, bias, shaping.dtype)
        for start in range(0, len(ids), shaping.num_rows):
            rows = slice(start, start + shaping.num_rows)
            scores = shaping.scores(hidden[rows].to(shaping.dtype), cast_weight, cast_bias, rows=rows)
            log_softmax = scores.log_softmax(-1)
            logprobs[rows] = log_softmax.gather(-1, ids[rows, None]).squeeze(-1)
            # 0 log 0 is 0
            entropies[rows] = torch.special.entr(log_softmax.exp_(), out=scores).sum(-1)
            # before the next chunk is made, which would be a third
            del scores, log_softmax
        is_needed = shaping.has_entropy_gradient
        ctx.save_for_backward(hidden, weight, bias, ids, entropies if is_needed else None)
        ctx.shaping = shaping
        if not is_needed:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: torch.Tensor, grad_entropies: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, None, None]:
        """The gradients of hidden, weight and bias, given those of logprobs and entropies [N]."""
        hidden, weight, bias, ids, entropies = ctx.saved_tensors
        shaping: _Shaping = ctx.shaping
        # what is summed over chunks is summed in full precision, also where the weight has less
        sum_dtype = torch.promote_types(weight.dtype, shaping.softmax_dtype)
        grad_hidden, grad_weight, grad_bias = (
            torch.zeros_like(tensor, dtype=dtype) if is_needed else None
            for tensor, dtype, is_needed in zip(
                (hidden, weight, bias),
                (hidden.dtype, sum_dtype, sum_dtype),
                ctx.needs_input_grad,
                strict=False,
            )
        )
        cast_weight, cast_bias = _cast(weight, bias, shaping.dtype)
        for start in range(0, len(ids), shaping.num_rows):
            rows = slice(start, start + shaping.num_rows)
            part = hidden[rows].to(shaping.dtype)
            scores = shaping.scores(part, cast_weight, cast_bias, rows=rows)
            grad_scores = shaping.scores_gradient(
                scores,
                ids[rows, None],
                grad_logprobs[rows],
                grad_entropies[rows],
                None if entropies is None else entropies[rows],
            )
            grad_logits = shaping.logits_gradient(grad_scores, scores).to(shaping.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = grad_logits @ cast_weight
            if grad_weight is not None:
                _add_product(grad_weight, grad_logits.T, part)
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
            del scores, grad_scores, grad_logits
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        if grad_bias is not None:
            grad_bias = grad_bias.to(weight.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None


def _cast(
    weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return weight.to(dtype), None if bias is None else bias.to(dtype)


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """total += left right; a product of lower precision than `total` is added at the precision of `total`."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)
