"""A sequence of advantage 0 need not be computed. That is so for every loss in the registry, but not with
every option."""

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from loss_batch import CORRECTION, batch, options, rows

from grpo_runtime.algorithm.entropy_bonus import EntropyBonus
from grpo_runtime.algorithm.geometric_mask import GeometricMask
from grpo_runtime.algorithm.kl import KLPenalty
from grpo_runtime.algorithm.losses import changes_gradient, compute_loss, needs_zero_advantages
from grpo_runtime.algorithm.registry import LOSSES
from grpo_runtime.algorithm.trust_region_mask import TrustRegionMask
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions

ZEROS = [1, 2, 5]
LEVELS = tuple(itertools.product(("token", "sequence"), ("token", "sequence", None)))
VARIANTS: list[dict[str, Any]] = [
    *(
        {
            "ratio_level": ratio,
            "importance_correction": level and dataclasses.replace(CORRECTION, level=level),
        }
        for ratio, level in LEVELS
    ),
    {"off_policy_threshold": 0.05},
    {"geometric_mask": GeometricMask(low=0.97, high=1.05)},
    {"trust_region_mask": TrustRegionMask(low=0.02, high=0.03)},
    {"delta": 1.1},
    {"dual_clip": 1.5},
    {"clip_low": 0.01, "clip_high": 0.01},
]


def a_batch() -> LossInputs:
    """Every sequence has tokens, and some have advantage 0, of either sign."""
    inputs = batch(num_tokens=9)
    advantages = inputs.advantages.clone()
    advantages[ZEROS] = torch.tensor([0.0, -0.0, 0.0], dtype=torch.float64)
    mask = inputs.loss_mask.clone()
    mask[:, 0] = True
    return dataclasses.replace(inputs, advantages=advantages, loss_mask=mask)


def gradient(inputs: LossInputs, chosen: LossOptions, denominators: Denominators) -> torch.Tensor:
    """[B, T] d loss / d logprobs."""
    leaf = inputs.trainer_logprobs.detach().clone().requires_grad_()
    inputs = dataclasses.replace(inputs, trainer_logprobs=leaf)
    compute_loss(inputs, options=chosen, denominators=denominators).loss.backward()
    assert leaf.grad is not None
    return leaf.grad


def gradients(chosen: LossOptions) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, T] of the whole batch, and of the batch without what has advantage 0, where it is 0."""
    whole = a_batch()
    denominators = Denominators.of_mask(whole.loss_mask)
    kept = (whole.advantages != 0).nonzero().flatten()
    assert len(kept) == 8 - len(ZEROS)
    without = torch.zeros_like(whole.trainer_logprobs)
    without[kept] = gradient(rows(whole, kept), chosen, denominators)
    return gradient(whole, chosen, denominators), without


def runs(loss_type: str, variant: dict[str, Any]) -> bool:
    correction = variant.get("importance_correction", CORRECTION)
    return (
        not LOSSES[loss_type].implementation.has_own_correction
        or getattr(correction, "level", "token") == "token"
    )


CASES = [
    (loss_type, variant) for loss_type in sorted(LOSSES) for variant in VARIANTS if runs(loss_type, variant)
]


@pytest.mark.parametrize(("loss_type", "variant"), CASES)
def test_a_sequence_of_advantage_0_has_gradient_0_in_every_loss(
    loss_type: str, variant: dict[str, Any]
) -> None:
    found, _ = gradients(options(loss_type, kl=None, **variant))
    assert (found[ZEROS] == 0).all()
    assert found.abs().max() > 0


@pytest.mark.parametrize(
    ("loss_type", "variant"), [case for case in CASES if not LOSSES[case[0]].implementation.depends_on_cut]
)
def test_the_gradient_is_the_same_without_sequences_of_advantage_0(
    loss_type: str, variant: dict[str, Any]
) -> None:
    chosen = options(loss_type, kl=None, **variant)
    whole, without = gradients(chosen)
    assert (whole - without).abs().max() <= 1e-12
    assert changes_gradient(a_batch().advantages, options=chosen).tolist() == [
        row not in ZEROS for row in range(8)
    ]


@pytest.mark.parametrize(
    "chosen",
    [
        options("dapo", kl=KLPenalty(beta=0.1)),
        options("grpo", kl=None, top_entropy_quantile=0.5),
        *(options(name, kl=None) for name, row in LOSSES.items() if row.implementation.depends_on_cut),
    ],
    ids=lambda chosen: f"{chosen.loss_type}-{chosen.kl is not None}-{chosen.top_entropy_quantile}",
)
def test_they_are_computed_where_the_gradient_would_be_another(chosen: LossOptions) -> None:
    whole, without = gradients(chosen)
    assert (whole - without).abs().max() > 1e-6
    assert needs_zero_advantages(chosen)
    assert changes_gradient(a_batch().advantages, options=chosen).all()


def test_an_advantage_that_is_not_a_number_is_computed() -> None:
    advantages = torch.tensor([torch.nan, 0.0])
    assert changes_gradient(advantages, options=LossOptions()).tolist() == [True, False]


def test_they_are_computed_where_their_tokens_have_an_entropy_bonus() -> None:
    chosen = options("dapo", kl=None, entropy=EntropyBonus(coefficient=0.0))
    assert changes_gradient(torch.tensor([0.0, 1.0]), options=chosen).tolist() == [True, True]
