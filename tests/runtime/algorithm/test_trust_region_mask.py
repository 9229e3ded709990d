"""The trust-region mask beside a second implementation, token by token."""

import dataclasses
import math
import random

import pytest
import torch
from loss_batch import batch, options

from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.metrics import metric_values
from grpo_runtime.algorithm.registry import LOSSES
from grpo_runtime.algorithm.trust_region_mask import TrustRegionMask, trust_region_mask
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions

BOUNDS = TrustRegionMask(low=0.02, high=0.03)


def is_kept(bounds: TrustRegionMask, *, trainer: float, sampler: float, advantage: float) -> bool:
    """Whether one token is."""
    rise = math.exp(trainer) - math.exp(sampler)
    if advantage > 0:
        return not rise > bounds.high
    return not (advantage < 0 and -rise > bounds.low)


def by_hand(bounds: TrustRegionMask, inputs: LossInputs) -> list[list[bool]]:
    assert inputs.rollout_logprobs is not None
    return [
        [
            is_kept(bounds, trainer=trainer, sampler=sampler, advantage=advantage)
            for trainer, sampler in zip(trainers, samplers, strict=True)
        ]
        for trainers, samplers, advantage in zip(
            inputs.trainer_logprobs.tolist(),
            inputs.rollout_logprobs.tolist(),
            inputs.advantages.tolist(),
            strict=True,
        )
    ]


def found(bounds: TrustRegionMask, inputs: LossInputs) -> list[list[bool]]:
    assert inputs.rollout_logprobs is not None
    kept: list[list[bool]] = trust_region_mask(
        bounds,
        trainer_logprobs=inputs.trainer_logprobs,
        rollout_logprobs=inputs.rollout_logprobs,
        advantages=inputs.advantages,
    ).tolist()
    return kept


def gradient(inputs: LossInputs, chosen: LossOptions) -> torch.Tensor:
    """[B, T] d loss / d logprobs."""
    leaf = inputs.trainer_logprobs.detach().clone().requires_grad_()
    inputs = dataclasses.replace(inputs, trainer_logprobs=leaf)
    compute_loss(inputs, options=chosen, denominators=Denominators.of_mask(inputs.loss_mask)).loss.backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("num_tokens", [1, 7])
def test_it_keeps_the_tokens_that_the_second_implementation_keeps(num_tokens: int) -> None:
    draw = random.Random(num_tokens)
    kept = []
    for seed in range(100):
        inputs = batch(num_tokens=num_tokens, seed=seed)
        unscored = torch.rand(inputs.loss_mask.shape, generator=torch.Generator().manual_seed(seed)) < 0.1
        advantages = inputs.advantages.clone()
        advantages[0] = 0.0
        inputs = dataclasses.replace(
            inputs,
            rollout_logprobs=torch.where(unscored, torch.nan, inputs.rollout_logprobs),
            advantages=advantages,
        )
        bounds = TrustRegionMask(low=draw.random() / 20, high=draw.random() / 20)
        expected = by_hand(bounds, inputs)
        assert found(bounds, inputs) == expected
        kept += [one for row in expected for one in row]
    assert 0.5 < sum(kept) / len(kept) < 0.95


def test_what_may_move_further_is_decided_by_the_sign_of_the_advantage() -> None:
    """The policy's .5 beside .2 and .8 of the sampler."""
    inputs = LossInputs(
        trainer_logprobs=torch.tensor([[0.5, 0.5, 0.5]] * 3, dtype=torch.float64).log(),
        rollout_logprobs=torch.tensor([[0.2, 0.8, math.nan]] * 3, dtype=torch.float64).log(),
        advantages=torch.tensor([1.0, -1.0, 0.0]),
        loss_mask=torch.ones(3, 3, dtype=torch.bool),
    )
    assert found(TrustRegionMask(low=0.2, high=0.2), inputs) == [
        [False, True, True],
        [True, False, True],
        [True, True, True],
    ]
    assert all(all(row) for row in found(TrustRegionMask(low=0.31, high=0.31), inputs))


@pytest.mark.parametrize("loss_type", sorted(LOSSES))
def test_a_token_that_is_dropped_has_no_policy_term_and_the_others_have_the_same(loss_type: str) -> None:
    inputs = batch()
    kept = torch.tensor(by_hand(BOUNDS, inputs))
    assert 0 < kept[inputs.loss_mask].sum() < inputs.loss_mask.sum()
    chosen = options(loss_type, kl=None)
    masked = dataclasses.replace(chosen, trust_region_mask=BOUNDS)
    assert torch.equal(gradient(inputs, masked), torch.where(kept, gradient(inputs, chosen), 0.0))


def test_what_is_dropped_keeps_its_penalty() -> None:
    inputs = dataclasses.replace(batch(), advantages=torch.ones(8))
    assert inputs.rollout_logprobs is not None
    inputs = dataclasses.replace(inputs, rollout_logprobs=torch.full_like(inputs.rollout_logprobs, -99.0))
    found = gradient(inputs, options("dapo", trust_region_mask=TrustRegionMask(low=1e-9, high=1e-9)))
    of_penalty = gradient(dataclasses.replace(inputs, advantages=torch.zeros(8)), options("dapo"))
    assert (found - of_penalty).abs().max() < 1e-15
    assert found.abs().max() > 0


def test_shares_are_of_the_tokens_that_count_beyond_each_bound() -> None:
    logprobs = torch.tensor([0.9, 0.5, 0.1]).log()
    inputs = LossInputs(
        trainer_logprobs=logprobs.expand(2, 3),
        rollout_logprobs=torch.tensor(0.5).log().expand(2, 3),
        advantages=torch.tensor([1.0, -1.0]),
        loss_mask=torch.tensor([[True, True, True], [False, False, True]]),
    )
    output = compute_loss(
        inputs,
        options=LossOptions(trust_region_mask=TrustRegionMask()),
        denominators=Denominators.of_mask(inputs.loss_mask),
    )
    values = metric_values(output.metrics)
    assert values["mask_ratio/trust_region_high"] == 1 / 4
    assert values["mask_ratio/trust_region_low"] == 1 / 4
