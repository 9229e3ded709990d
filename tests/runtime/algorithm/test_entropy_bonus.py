"""The bonus for the entropy of the policy."""

import dataclasses

import pytest
import torch
from loss_batch import batch, options

from grpo_runtime.algorithm.entropy_bonus import EntropyBonus, EntropyControl
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.registry import LOSSES
from grpo_runtime.algorithm.top_entropy import top_entropy_threshold
from grpo_runtime.algorithm.types import Denominators


@pytest.mark.parametrize("loss_type", sorted(LOSSES))
def test_a_bonus_is_the_mean_entropy_of_all_tokens_whatever_the_loss_divides_by(loss_type: str) -> None:
    inputs = batch()
    entropies = inputs.entropies.clone().requires_grad_()
    # padding may hold anything
    entropies = torch.where(inputs.loss_mask, entropies, torch.nan)
    entropies.retain_grad()
    inputs = dataclasses.replace(inputs, entropies=entropies)
    denominators = Denominators.of_mask(inputs.loss_mask)
    with_bonus, without = (
        compute_loss(inputs, options=options(loss_type, entropy=bonus), denominators=denominators).loss
        for bonus in (EntropyBonus(coefficient=0.25), None)
    )
    mean = entropies[inputs.loss_mask].mean()
    assert (with_bonus - without).item() == pytest.approx(-0.25 * mean.item(), abs=1e-12)
    with_bonus.backward()
    expected = inputs.loss_mask.double() * (-0.25 / float(inputs.loss_mask.sum()))
    assert (entropies.grad - expected).abs().max() < 1e-15


def test_only_the_tokens_that_carry_the_policy_term_have_a_bonus() -> None:
    inputs = batch()
    mask = inputs.loss_mask
    threshold = top_entropy_threshold(inputs.entropies, mask=mask, quantile=0.3)
    chosen = options("dapo", top_entropy_quantile=0.3)
    with_bonus, without = (
        compute_loss(
            inputs,
            options=dataclasses.replace(chosen, entropy=bonus),
            denominators=Denominators.of_mask(mask),
        ).loss
        for bonus in (EntropyBonus(coefficient=1.0), None)
    )
    uncertain = mask & (inputs.entropies >= threshold)
    assert 0 < uncertain.sum() < mask.sum()
    expected = -inputs.entropies[uncertain].sum() / mask.sum()
    assert (with_bonus - without).item() == pytest.approx(expected.item(), abs=1e-12)


def test_the_coefficient_of_a_bonus_follows_a_target_within_its_bounds() -> None:
    control = EntropyControl(target=0.5, delta=0.25, least=0.1, most=0.6)
    coefficient, found = 0.2, []
    for entropy in (0.4, 0.5, 0.3, 0.6, 0.9, 0.7, 0.2):
        coefficient = control.coefficient_after(coefficient, entropy=entropy)
        found.append((pytest.approx(coefficient), control.is_low(entropy)))
    assert found == [
        (0.45, True), (0.6, True), (0.6, True), (0.35, False), (0.1, False), (0.1, False), (0.35, True)
    ]  # fmt: skip
