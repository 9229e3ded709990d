"""Logprobs of chosen tokens: their values, their gradients, and the memory they need."""

import pytest
import torch
from dense_logprobs import dense_logprobs

from grpo_bench.live_tensors import LiveTensors
from grpo_runtime.algorithm.logprobs import TokenLogprobs, head_logprobs

N, H, V = 7, 6, 11
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-6}


def example(
    dtype: torch.dtype = torch.float64, *, num_positions: int = N
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, weight, bias and token ids; logits of about 3."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        (torch.randn(*shape, generator=generator, dtype=torch.float64) * size).to(dtype).requires_grad_()
        for shape, size in (((num_positions, H), 1.0), ((V, H), 1.2), ((V,), 1.0))
    )
    return hidden, weight, bias, torch.randint(0, V, (num_positions,), generator=generator)


def dense_logits(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, scale: float, softcap: float | None
) -> torch.Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias) * scale
    return logits if softcap is None else softcap * (logits / softcap).tanh()


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((found - expected).norm() / expected.norm()).detach())


@pytest.mark.parametrize("num_rows", [1, 3, 100])
@pytest.mark.parametrize(("scale", "softcap"), [(1.0, None), (0.25, None), (1.0, 2.0), (3.0, 5.0)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("has_entropy_gradient", [False, True])
def test_values_and_gradients_are_those_of_the_softmax_of_all_logits(
    *,
    has_entropy_gradient: bool,
    dtype: torch.dtype,
    temperature: float,
    scale: float,
    softcap: float | None,
    num_rows: int,
) -> None:
    hidden, weight, bias, ids = example(dtype)
    logits = dense_logits(hidden, weight, bias, scale=scale, softcap=softcap)
    expected = dense_logprobs(logits, token_ids=ids, temperature=temperature)
    found = head_logprobs(
        hidden, weight=weight, bias=bias, token_ids=ids, temperature=temperature,
        scale=scale, softcap=softcap, chunk_logits=num_rows * V, has_entropy_gradient=has_entropy_gradient,
    )  # fmt: skip
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        assert relative(ours, theirs) < TOLERANCES[dtype]
    gradients, expected_gradients = (
        torch.autograd.grad(
            logprobs.square().sum() + has_entropy_gradient * entropies.pow(3).sum(), [hidden, weight, bias]
        )
        for logprobs, entropies in (found, expected)
    )
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert relative(ours, theirs) < TOLERANCES[dtype]
    assert found.entropies.requires_grad == has_entropy_gradient


def test_the_gradient_is_right_in_every_element() -> None:
    hidden, weight, bias, ids = example()

    def both(
        hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return head_logprobs(
            hidden, weight=weight, bias=bias, token_ids=ids, temperature=0.7, scale=0.5, softcap=2.0,
            chunk_logits=2 * V, has_entropy_gradient=True,
        )  # fmt: skip

    assert torch.autograd.gradcheck(both, (hidden, weight, bias))


def test_a_product_in_bfloat16_is_read_in_float32_and_gives_gradients_as_the_inputs_are() -> None:
    hidden, weight, bias, ids = example(torch.float32)
    found = head_logprobs(
        hidden, weight=weight, bias=bias, token_ids=ids, temperature=1.0, dtype=torch.bfloat16
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = torch.nn.functional.linear(hidden, weight, bias)
    assert logits.dtype == torch.bfloat16
    expected, _ = dense_logprobs(logits, token_ids=ids)
    assert found.logprobs.dtype == torch.float32
    assert torch.allclose(found.logprobs, expected, atol=1e-6)
    gradients, expected_gradients = (
        torch.autograd.grad(logprobs.sum(), [hidden, weight, bias]) for logprobs in (found.logprobs, expected)
    )
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert ours.dtype == torch.float32
        assert relative(ours, theirs) < 0.01


def test_the_gradient_of_a_weight_in_bfloat16_is_summed_over_chunks_in_float32() -> None:
    hidden, weight, bias, ids = (tensor.detach() for tensor in example(torch.float32, num_positions=4096))
    parameters = [tensor.bfloat16().requires_grad_() for tensor in (weight, bias)]

    def gradients(chunk_logits: int) -> tuple[torch.Tensor, ...]:
        found = head_logprobs(
            hidden.bfloat16(),
            weight=parameters[0],
            bias=parameters[1],
            token_ids=ids,
            temperature=1.0,
            chunk_logits=chunk_logits,
        )
        return torch.autograd.grad(found.logprobs.sum(), parameters)

    for cut, whole in zip(gradients(8 * V), gradients(1 << 20), strict=True):
        assert cut.dtype == torch.bfloat16
        # the last rounding, and that of each product; a sum in bfloat16 is wrong by a multiple of it
        assert relative(cut.float(), whole.float()) < 0.01


def test_a_token_of_probability_zero_has_no_part_in_the_entropy() -> None:
    hidden = torch.zeros((1, 1), requires_grad=True)
    found = head_logprobs(
        hidden,
        weight=torch.zeros(3, 1),
        bias=torch.tensor([0.0, 0.0, -torch.inf]),
        token_ids=torch.tensor([0]),
        temperature=1.0,
        has_entropy_gradient=True,
    )
    assert found.entropies.item() == pytest.approx(torch.log(torch.tensor(2.0)).item())
    (gradient,) = torch.autograd.grad(found.entropies.sum(), hidden)
    assert gradient.item() == pytest.approx(0, abs=1e-6)


def test_without_a_position_every_gradient_is_zero() -> None:
    hidden, weight, bias, ids = example(num_positions=0)
    found = head_logprobs(hidden, weight=weight, bias=bias, token_ids=ids, temperature=1.0)
    gradients = torch.autograd.grad(found.logprobs.sum(), [hidden, weight, bias])
    assert [gradient.shape for gradient in gradients] == [(0, H), (V, H), (V,)]
    assert all((gradient == 0).all() for gradient in gradients)


def test_a_frozen_weight_gets_no_gradient_and_the_hidden_states_get_theirs() -> None:
    hidden, weight, _, ids = example()
    found = head_logprobs(hidden, weight=weight.detach(), token_ids=ids, temperature=1.0)
    found.logprobs.sum().backward()
    expected, _ = dense_logprobs(hidden @ weight.detach().T, token_ids=ids)
    (gradient,) = torch.autograd.grad(expected.sum(), hidden)
    assert hidden.grad is not None
    assert torch.allclose(hidden.grad, gradient, atol=1e-12)


class LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):
    """The elements of the largest tensor that any operation returns meanwhile."""

    num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.num_elements = max(self.num_elements, tensor.numel())
        return result


@pytest.mark.parametrize("has_entropy_gradient", [False, True])
def test_neither_pass_holds_the_logits_of_more_positions_than_a_chunk_has(has_entropy_gradient: bool) -> None:
    hidden, weight, bias, ids = example(num_positions=100)
    kept: list[torch.Tensor] = []
    with (
        LargestTensor() as largest,
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda t: t),
    ):
        found = head_logprobs(
            hidden, weight=weight, bias=bias, token_ids=ids, temperature=0.7, softcap=3.0,
            chunk_logits=60 * V, has_entropy_gradient=has_entropy_gradient,
        )  # fmt: skip
        (found.logprobs + found.entropies).sum().backward()
    assert largest.num_elements == 60 * V
    of_entropies = [100] if has_entropy_gradient else []
    assert sorted(tensor.numel() for tensor in kept) == sorted([*of_entropies, 100, V, V * H, 100 * H])


def test_the_same_inputs_give_the_same_bits() -> None:
    def values_and_gradients() -> list[torch.Tensor]:
        hidden, weight, bias, ids = example(torch.float32, num_positions=100)
        found: TokenLogprobs = head_logprobs(
            hidden, weight=weight, bias=bias, token_ids=ids, temperature=0.7, chunk_logits=30 * V
        )
        return [*found, *torch.autograd.grad(found.logprobs.sum(), [hidden, weight, bias])]

    assert all(a.equal(b) for a, b in zip(values_and_gradients(), values_and_gradients(), strict=True))


def test_temperature_zero_is_refused() -> None:
    hidden, weight, _, ids = example()
    with pytest.raises(ValueError, match="temperature"):
        head_logprobs(hidden, weight=weight, token_ids=ids, temperature=0.0)


@pytest.mark.parametrize("has_entropy_gradient", [False, True])
def test_no_more_than_two_chunks_of_logits_are_held_at_a_time(has_entropy_gradient: bool) -> None:
    vocabulary, hidden_size, num_rows = 4096, 8, 4
    hidden, weight = (torch.randn(size, hidden_size, requires_grad=True) for size in (32, vocabulary))
    with LiveTensors() as live:
        found = head_logprobs(
            hidden,
            weight=weight,
            token_ids=torch.arange(32),
            temperature=1.0,
            chunk_logits=num_rows * vocabulary,
            has_entropy_gradient=has_entropy_gradient,
        )
        (found.logprobs + found.entropies).sum().backward()
    chunk_bytes, weight_bytes = 4 * num_rows * vocabulary, 4 * vocabulary * hidden_size
    # the weight and its gradient
    assert live.peak_bytes < 2.2 * chunk_bytes + 2 * weight_bytes
