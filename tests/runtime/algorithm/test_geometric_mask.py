"""The geometric mask beside a second implementation, which multiplies probabilities."""

import dataclasses
import math
import random

import pytest
import torch
from loss_batch import batch, options

from grpo_runtime.algorithm.geometric_mask import GeometricMask, geometric_mask
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.metrics import metric_values
from grpo_runtime.algorithm.registry import LOSSES
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions

BOUNDS = GeometricMask(low=0.97, high=1.02)


def by_hand(bounds: GeometricMask, inputs: LossInputs) -> list[bool]:
    """Which sequences are kept."""
    assert inputs.old_logprobs is not None and inputs.rollout_logprobs is not None
    kept = []
    for row, mask in enumerate(inputs.loss_mask.tolist()):
        ratios = [
            math.exp(old) / math.exp(sampler) if not math.isnan(sampler) else 1.0
            for old, sampler, counts in zip(
                inputs.old_logprobs[row].tolist(), inputs.rollout_logprobs[row].tolist(), mask, strict=True
            )
            if counts
        ]
        mean = math.prod(ratios) ** (1 / len(ratios)) if ratios else 1.0
        kept.append(bounds.low <= mean <= bounds.high)
    return kept


def found(bounds: GeometricMask, inputs: LossInputs) -> list[bool]:
    assert inputs.old_logprobs is not None and inputs.rollout_logprobs is not None
    kept = geometric_mask(
        bounds,
        old_logprobs=inputs.old_logprobs,
        rollout_logprobs=inputs.rollout_logprobs,
        mask=inputs.loss_mask,
    )
    return kept.squeeze(1).tolist()


def gradient(inputs: LossInputs, chosen: LossOptions) -> torch.Tensor:
    """[B, T] d loss / d logprobs."""
    leaf = inputs.trainer_logprobs.detach().clone().requires_grad_()
    inputs = dataclasses.replace(inputs, trainer_logprobs=leaf)
    compute_loss(inputs, options=chosen, denominators=Denominators.of_mask(inputs.loss_mask)).loss.backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("num_tokens", [1, 7, 300])
def test_it_keeps_the_sequences_that_the_second_implementation_keeps(num_tokens: int) -> None:
    draw = random.Random(num_tokens)
    kept = []
    for seed in range(100):
        inputs = batch(num_tokens=num_tokens, seed=seed)
        unscored = torch.rand(inputs.loss_mask.shape, generator=torch.Generator().manual_seed(seed)) < 0.1
        inputs = dataclasses.replace(
            inputs, rollout_logprobs=torch.where(unscored, torch.nan, inputs.rollout_logprobs)
        )
        bounds = GeometricMask(low=1 - draw.random() / 10, high=1 + draw.random() / 10)
        kept += by_hand(bounds, inputs)
        assert found(bounds, inputs) == kept[-8:]
    assert 0.1 < sum(kept) / len(kept) < 0.95


def test_sequences_that_say_nothing_are_kept() -> None:
    nothing = torch.tensor([[-1.0, -2.0], [torch.nan, torch.nan]])
    inputs = LossInputs(
        trainer_logprobs=torch.zeros(2, 2),
        old_logprobs=torch.tensor([[-9.0, torch.nan], [-1.0, -2.0]]),
        rollout_logprobs=nothing,
        advantages=torch.ones(2),
        loss_mask=torch.tensor([[False, False], [True, True]]),
    )
    assert found(BOUNDS, inputs) == by_hand(BOUNDS, inputs) == [True, True]


def test_a_ratio_at_a_bound_is_kept_and_one_beyond_it_is_not() -> None:
    old = torch.tensor([[2.0], [2.0 + 1e-9], [0.5], [0.5 - 1e-9]], dtype=torch.float64).log()
    kept = geometric_mask(
        GeometricMask(low=0.5, high=2.0),
        old_logprobs=old,
        rollout_logprobs=torch.zeros_like(old),
        mask=torch.ones_like(old, dtype=torch.bool),
    )
    assert kept.squeeze(1).tolist() == [True, False, True, False]


@pytest.mark.parametrize("loss_type", sorted(LOSSES))
def test_a_sequence_that_is_dropped_has_no_policy_term_and_the_others_have_the_same(loss_type: str) -> None:
    inputs = batch()
    kept = torch.tensor(by_hand(BOUNDS, inputs)).unsqueeze(1)
    assert 0 < kept.sum() < 8
    chosen = options(loss_type, kl=None)
    masked = dataclasses.replace(chosen, geometric_mask=BOUNDS)
    assert torch.equal(gradient(inputs, masked), torch.where(kept, gradient(inputs, chosen), 0.0))


def test_what_is_dropped_keeps_its_penalty() -> None:
    inputs = batch()
    nowhere = GeometricMask(low=0.1, high=0.1)
    found = gradient(inputs, options("dapo", geometric_mask=nowhere))
    of_penalty = gradient(dataclasses.replace(inputs, advantages=torch.zeros(8)), options("dapo"))
    assert (found - of_penalty).abs().max() < 1e-15
    assert found.abs().max() > 0


def test_shares_are_of_the_sequences_and_tokens_that_count() -> None:
    inputs = LossInputs(
        trainer_logprobs=torch.zeros(3, 4),
        old_logprobs=torch.zeros(3, 4),
        rollout_logprobs=torch.tensor([[0.5] * 4, [0.0] * 4, [0.5] * 4]),
        advantages=torch.ones(3),
        loss_mask=torch.tensor([[True, False, False, False], [True, True, True, False], [False] * 4]),
    )
    output = compute_loss(
        inputs,
        options=LossOptions(geometric_mask=BOUNDS),
        denominators=Denominators.of_mask(inputs.loss_mask),
    )
    values = metric_values(output.metrics)
    assert values["mask_ratio/geometric_sequences"] == 1 / 2
    assert values["mask_ratio/geometric_tokens"] == 1 / 4
