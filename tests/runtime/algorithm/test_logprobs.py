"""Logprobs of chosen tokens: their values, their gradient, and the memory they need."""

import pytest
import torch

from grpo_runtime.algorithm.logprobs import CHUNK_TOKENS, chunked_token_logprobs, token_logprobs


def example(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 11, generator=generator, dtype=torch.float64) * 3
    ids = torch.randint(0, 11, (3, 5), generator=generator)
    return logits.to(dtype).requires_grad_(), ids


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_logprobs_and_entropies_are_those_of_the_whole_softmax(temperature: float) -> None:
    logits, ids = example()
    found = token_logprobs(logits, token_ids=ids, temperature=temperature)
    scores = (logits / temperature).log_softmax(-1)
    assert torch.allclose(found.logprobs, scores.gather(-1, ids.unsqueeze(-1)).squeeze(-1), atol=1e-12)
    assert torch.allclose(found.entropies, -(scores.exp() * scores).sum(-1), atol=1e-12)


def test_several_chunks_give_the_values_and_the_gradient_of_one() -> None:
    generator = torch.Generator().manual_seed(2)
    num_tokens = 2 * CHUNK_TOKENS + 3
    logits = torch.randn(1, num_tokens, 5, generator=generator, dtype=torch.float64).requires_grad_()
    ids = torch.randint(0, 5, (1, num_tokens), generator=generator)
    found = token_logprobs(logits, token_ids=ids, temperature=0.7)
    expected = (logits / 0.7).log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(found.logprobs, expected, atol=1e-12)
    (gradient,) = torch.autograd.grad(found.logprobs.square().sum(), logits)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), logits)
    assert torch.allclose(gradient, expected_gradient, atol=1e-12)


def test_the_gradient_is_right_in_every_element() -> None:
    logits, ids = example()
    assert torch.autograd.gradcheck(
        lambda x: token_logprobs(x, token_ids=ids, temperature=0.7).logprobs, logits
    )


def test_bfloat16_logits_are_read_in_float32() -> None:
    logits, ids = example(torch.bfloat16)
    found = token_logprobs(logits, token_ids=ids, temperature=1.0)
    assert found.logprobs.dtype == torch.float32
    expected = logits.float().log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(found.logprobs, expected, atol=1e-6)
    found.logprobs.sum().backward()
    assert logits.grad.dtype == torch.bfloat16


def test_a_token_of_probability_zero_has_no_part_in_the_entropy() -> None:
    logits = torch.tensor([[[0.0, 0.0, -torch.inf]]])
    found = token_logprobs(logits, token_ids=torch.tensor([[0]]), temperature=1.0)
    assert found.entropies.item() == pytest.approx(torch.log(torch.tensor(2.0)).item())


@pytest.mark.parametrize("chunk_tokens", [1, 4, 100])
def test_from_hidden_states_in_chunks_values_and_gradients_are_the_same(chunk_tokens: int) -> None:
    generator = torch.Generator().manual_seed(1)
    head = torch.nn.Linear(6, 11, dtype=torch.float64)
    hidden = torch.randn(3, 5, 6, generator=generator, dtype=torch.float64).requires_grad_()
    ids = torch.randint(0, 11, (3, 5), generator=generator)
    whole = token_logprobs(head(hidden), token_ids=ids, temperature=0.9)
    expected = torch.autograd.grad(whole.logprobs.square().sum(), [hidden, head.weight])
    parts = chunked_token_logprobs(
        hidden, head=head, token_ids=ids, temperature=0.9, chunk_tokens=chunk_tokens
    )
    found = torch.autograd.grad(parts.logprobs.square().sum(), [hidden, head.weight])
    assert torch.allclose(parts.logprobs, whole.logprobs, atol=1e-12)
    assert torch.allclose(parts.entropies, whole.entropies, atol=1e-12)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_the_logits_are_all_of_their_size_that_is_kept_for_the_backward_pass() -> None:
    logits, ids = example(torch.bfloat16)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        token_logprobs(logits, token_ids=ids, temperature=1.0)
    large = [t for t in kept if t.numel() >= logits.numel()]
    assert [t.data_ptr() for t in large] == [logits.data_ptr()]


def test_temperature_zero_is_refused() -> None:
    logits, ids = example()
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(logits, token_ids=ids, temperature=0.0)
