"""Logprobs of tokens that were drawn from a part of the vocabulary: their values and their gradients."""

import math

import pytest
import torch
from dense_logprobs import dense_logprobs

from grpo_runtime.algorithm.kept_tokens import KeptTokens, kept_tokens
from grpo_runtime.algorithm.logprobs import TokenLogprobs, head_logprobs

H, V = 6, 11
MASKS = ((3,), (0, 10, 4), tuple(range(V)), (9, 2), (7, 1, 5, 0, 6, 2))
TOKENS = (3, 4, 8, 2, 6)
"""The token that was drawn from each of the masks, whose lengths differ."""


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, weight and bias in float64."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((len(MASKS), H), (V, H), (V,))
    )
    return hidden, weight, bias


def cut_logits(logits: torch.Tensor) -> torch.Tensor:
    """Minus infinity for what is in no mask, the plain way."""
    is_kept = torch.zeros(logits.shape, dtype=torch.bool)
    for position, mask in enumerate(MASKS):
        is_kept[position, list(mask)] = True
    return logits.masked_fill(~is_kept, -torch.inf)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 100])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("has_entropy_gradient", [False, True])
def test_values_and_gradients_are_those_of_a_softmax_over_the_kept_tokens_alone(
    has_entropy_gradient: bool, softcap: float | None, num_rows: int
) -> None:
    hidden, weight, bias = example()
    logits = torch.nn.functional.linear(hidden, weight, bias)
    logits = logits if softcap is None else softcap * (logits / softcap).tanh()
    ids = torch.tensor(TOKENS)
    # autograd gives NaN for 0 log 0, so the entropies are summed over the kept tokens
    expected, _ = dense_logprobs(cut_logits(logits), token_ids=ids, temperature=0.7)
    entropies = torch.stack(
        [
            torch.special.entr((logits[position, list(mask)] / 0.7).softmax(-1)).sum()
            for position, mask in enumerate(MASKS)
        ]
    )
    found = head_logprobs(
        hidden, weight=weight, bias=bias, token_ids=ids, temperature=0.7, softcap=softcap,
        chunk_logits=num_rows * V, has_entropy_gradient=has_entropy_gradient, kept=kept_tokens(MASKS),
    )  # fmt: skip
    assert torch.allclose(found.logprobs, expected, rtol=0, atol=1e-12)
    assert torch.allclose(found.entropies, entropies, rtol=0, atol=1e-12)
    ours, theirs = (
        torch.autograd.grad(
            logprobs.square().sum() + has_entropy_gradient * values.pow(3).sum(), [hidden, weight, bias]
        )
        for logprobs, values in (found, (expected, entropies))
    )
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


def test_it_is_the_logprob_less_the_logsumexp_of_the_kept_ones() -> None:
    hidden, weight, bias = example()
    log_softmax = torch.nn.functional.linear(hidden, weight, bias).log_softmax(-1)
    found = head_logprobs(
        hidden, weight=weight, bias=bias, token_ids=torch.tensor(TOKENS), temperature=1.0,
        kept=kept_tokens(MASKS),
    )  # fmt: skip
    for position, (mask, token) in enumerate(zip(MASKS, TOKENS, strict=True)):
        expected = log_softmax[position, token] - log_softmax[position, list(mask)].logsumexp(0)
        assert found.logprobs[position].item() == pytest.approx(expected.item(), abs=1e-12)


def test_a_token_that_was_the_only_one_is_certain_and_teaches_nothing() -> None:
    hidden, weight, _ = example()
    found = head_logprobs(
        hidden, weight=weight, token_ids=torch.tensor(TOKENS), temperature=1.0, kept=kept_tokens(MASKS)
    )
    assert found.logprobs[0].item() == 0
    (gradient,) = torch.autograd.grad(found.logprobs[0], hidden)
    assert (gradient == 0).all()


def test_with_every_token_kept_nothing_changes() -> None:
    hidden, weight, bias = example()

    def both(kept: KeptTokens | None) -> TokenLogprobs:
        return head_logprobs(
            hidden, weight=weight, bias=bias, token_ids=torch.tensor(TOKENS), temperature=0.7, kept=kept,
            has_entropy_gradient=True,
        )  # fmt: skip

    plain, cut = both(None), both(kept_tokens([range(V)] * len(MASKS)))
    assert all(one.equal(other) for one, other in zip(plain, cut, strict=True))


def test_a_token_outside_its_mask_is_impossible() -> None:
    hidden, weight, _ = example()
    found = head_logprobs(
        hidden[:1], weight=weight, token_ids=torch.tensor([4]), temperature=1.0, kept=kept_tokens([(3, 5)])
    )
    assert found.logprobs.item() == -math.inf


def test_without_a_position_every_gradient_is_zero() -> None:
    hidden, weight, _ = example()
    found = head_logprobs(
        hidden[:0], weight=weight, token_ids=torch.tensor([], dtype=torch.int64), temperature=1.0,
        kept=kept_tokens([]),
    )  # fmt: skip
    gradients = torch.autograd.grad(found.logprobs.sum(), [hidden, weight])
    assert all((gradient == 0).all() for gradient in gradients)


def test_an_empty_mask_and_masks_of_other_tokens_are_refused() -> None:
    hidden, weight, _ = example()
    with pytest.raises(ValueError, match="position 1 has no kept token"):
        kept_tokens([(1,), ()])
    with pytest.raises(ValueError, match="kept tokens of 1 positions for 5 tokens"):
        head_logprobs(
            hidden, weight=weight, token_ids=torch.tensor(TOKENS), temperature=1.0, kept=kept_tokens([(1,)])
        )
