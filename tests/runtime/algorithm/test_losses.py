"""Properties of the losses that published numbers do not show."""

import dataclasses
import math
from typing import Any, Literal

import pytest
import torch
from loss_batch import CORRECTION, batch, options, rows

from grpo_runtime.algorithm.entropy_bonus import EntropyBonus
from grpo_runtime.algorithm.geometric_mask import GeometricMask
from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.kl import KLPenalty
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.metrics import merge_metrics, metric_values
from grpo_runtime.algorithm.registry import LOSSES
from grpo_runtime.algorithm.top_entropy import top_entropy_threshold
from grpo_runtime.algorithm.trust_region_mask import TrustRegionMask
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions

MASKS = {
    "geometric_mask": GeometricMask(low=0.97, high=1.05),
    "trust_region_mask": TrustRegionMask(low=0.02, high=0.03),
}
"""Each leaves some of `batch` out."""
EXACT_WHEN_CUT = sorted(name for name, row in LOSSES.items() if not row.implementation.depends_on_cut)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("loss_type", EXACT_WHEN_CUT)
def test_the_losses_of_the_parts_of_a_batch_add_up_to_the_loss_of_the_batch(
    loss_type: str, num_ranks: int
) -> None:
    whole = dataclasses.replace(batch(), is_current=torch.arange(8).unsqueeze(1) + torch.arange(7) < 8)
    denominators = Denominators.of_mask(whole.loss_mask)
    bonus = EntropyBonus(coefficient=0.3)
    chosen = options(loss_type, top_entropy_quantile=0.7, off_policy_threshold=0.05, entropy=bonus, **MASKS)
    threshold = top_entropy_threshold(whole.entropies, mask=whole.loss_mask, quantile=0.7)
    expected = compute_loss(whole, options=chosen, denominators=denominators)
    expected.loss.backward()
    gradient, whole.trainer_logprobs.grad = whole.trainer_logprobs.grad, None

    size = 8 // num_ranks
    parts = [
        compute_loss(
            rows(whole, slice(start, start + size), entropy_threshold=threshold),
            options=chosen,
            denominators=denominators,
        )
        for start in range(0, 8, size)
    ]
    total = sum(part.loss for part in parts)
    total.backward()
    assert total.item() == pytest.approx(expected.loss.item(), abs=1e-12)
    assert (whole.trainer_logprobs.grad - gradient).abs().max() < 1e-12
    merged = metric_values(merge_metrics([part.metrics for part in parts]))
    assert merged == pytest.approx(metric_values(expected.metrics), abs=1e-12)


def test_without_global_denominators_ranks_of_unequal_length_would_not_add_up() -> None:
    whole = batch()
    chosen = options("dapo")
    expected = compute_loss(whole, options=chosen, denominators=Denominators.of_mask(whole.loss_mask)).loss
    halves = [rows(whole, slice(0, 4)), rows(whole, slice(4, 8))]
    means = [
        compute_loss(h, options=chosen, denominators=Denominators.of_mask(h.loss_mask)).loss for h in halves
    ]
    assert abs(sum(means).item() / 2 - expected.item()) > 1e-3


@pytest.mark.parametrize("loss_type", sorted(LOSSES))
def test_values_in_the_padding_change_neither_loss_nor_gradient(loss_type: str) -> None:
    clean = batch()
    denominators = Denominators.of_mask(clean.loss_mask)
    chosen = options(loss_type, off_policy_threshold=0.05, top_entropy_quantile=0.5, **MASKS)
    dirty = rows(clean, slice(None))
    for name in ("trainer_logprobs", "old_logprobs", "rollout_logprobs", "ref_logprobs", "entropies"):
        rubbish = torch.where(clean.loss_mask, getattr(clean, name).detach(), torch.nan)
        dirty = dataclasses.replace(dirty, **{name: rubbish})
    dirty.trainer_logprobs.requires_grad_()
    expected = compute_loss(clean, options=chosen, denominators=denominators).loss
    loss = compute_loss(dirty, options=chosen, denominators=denominators).loss
    expected.backward()
    loss.backward()
    assert loss.item() == expected.item()
    assert torch.equal(dirty.trainer_logprobs.grad, clean.trainer_logprobs.grad)
    assert (clean.trainer_logprobs.grad[~clean.loss_mask] == 0).all()


@pytest.mark.parametrize("loss_type", sorted(LOSSES))
def test_a_batch_with_no_token_has_loss_and_gradient_zero(loss_type: str) -> None:
    inputs = dataclasses.replace(batch(), loss_mask=torch.zeros(8, 7, dtype=torch.bool))
    denominators = Denominators.of_mask(inputs.loss_mask)
    output = compute_loss(inputs, options=options(loss_type, **MASKS), denominators=denominators)
    output.loss.backward()
    assert output.loss.item() == 0
    assert (inputs.trainer_logprobs.grad == 0).all()
    assert all(math.isfinite(value) for value in metric_values(output.metrics).values())


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", sorted(LOSSES))
def test_an_empty_micro_batch_has_a_part_in_no_metric(
    loss_type: str, level: Literal["token", "sequence"]
) -> None:
    nothing = torch.zeros((1, 1))
    inputs = LossInputs(
        trainer_logprobs=nothing.clone().requires_grad_(),
        advantages=torch.zeros(1),
        loss_mask=torch.zeros((1, 1), dtype=torch.bool),
        rollout_logprobs=nothing,
        ref_logprobs=nothing,
        entropies=nothing,
    )
    chosen = options(loss_type, ratio_level=level, geometric_mask=MASKS["geometric_mask"])
    if level == "token":
        chosen = dataclasses.replace(chosen, trust_region_mask=MASKS["trust_region_mask"])
    if not LOSSES[loss_type].implementation.has_own_correction:
        correction = dataclasses.replace(CORRECTION, level=level)
        chosen = dataclasses.replace(chosen, importance_correction=correction)
    output = compute_loss(
        inputs, options=chosen, denominators=Denominators(num_tokens=9.0, num_sequences=2.0)
    )
    assert output.metrics
    assert metric_values(output.metrics) == {}
    whole = batch()
    found = compute_loss(whole, options=chosen, denominators=Denominators.of_mask(whole.loss_mask)).metrics
    assert metric_values(merge_metrics([found, output.metrics])) == metric_values(found)


def test_the_first_update_gives_the_plain_policy_gradient() -> None:
    inputs = dataclasses.replace(batch(), old_logprobs=None)
    denominators = Denominators.of_mask(inputs.loss_mask)
    compute_loss(inputs, options=LossOptions(loss_type="dapo"), denominators=denominators).loss.backward()
    expected = -inputs.advantages.unsqueeze(1) * inputs.loss_mask / denominators.num_tokens
    assert (inputs.trainer_logprobs.grad - expected).abs().max() < 1e-12


@pytest.mark.parametrize(("estimator", "divergence"), [("k2", 200.0), ("k3", math.exp(20) - 21)])
@pytest.mark.parametrize("distance", [50.0, 5000.0])
def test_a_policy_far_from_the_old_one_or_the_reference_has_a_bounded_loss_without_gradient(
    distance: float, estimator: str, divergence: float
) -> None:
    inputs = LossInputs(
        trainer_logprobs=torch.tensor([[-1.0]], requires_grad=True),
        old_logprobs=torch.tensor([[-1.0 - distance]]),
        ref_logprobs=torch.tensor([[-1.0 + distance]]),
        advantages=torch.tensor([-2.0]),
        loss_mask=torch.tensor([[True]]),
    )
    penalty = KLPenalty(beta=0.5, estimator=estimator, is_bias_corrected=False)
    loss = compute_loss(
        inputs,
        options=LossOptions(loss_type="grpo", kl=penalty),
        denominators=Denominators.of_mask(inputs.loss_mask),
    ).loss
    loss.backward()
    assert loss.item() == pytest.approx(2 * math.exp(20) + 0.5 * divergence, rel=1e-6)
    assert inputs.trainer_logprobs.grad.tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("chosen", "changes", "sentence"),
    [
        (LossOptions(loss_type="ppo"), {}, "must be one of bnpo, cispo, dapo"),
        (LossOptions(loss_type="dr_grpo"), {}, "needs max_completion_length"),
        (
            LossOptions(importance_correction=CORRECTION),
            {"rollout_logprobs": None},
            "has no rollout_logprobs",
        ),
        *(
            (LossOptions(**{name: mask}), {"rollout_logprobs": None}, "has no rollout_logprobs")
            for name, mask in MASKS.items()
        ),
        (
            LossOptions(trust_region_mask=MASKS["trust_region_mask"], ratio_level="sequence"),
            {},
            "needs ratio_level token",
        ),
        (LossOptions(kl=KLPenalty(beta=0.1)), {"ref_logprobs": None}, "has no ref_logprobs"),
        (LossOptions(top_entropy_quantile=0.2), {"entropies": None}, "has no entropies"),
        (
            LossOptions(loss_type="vespo", importance_correction=ImportanceCorrection(level="sequence")),
            {},
            "needs importance correction at token level",
        ),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_reason(
    chosen: LossOptions, changes: dict[str, Any], sentence: str
) -> None:
    inputs = dataclasses.replace(batch(), **changes)
    with pytest.raises(ValueError, match=sentence):
        compute_loss(inputs, options=chosen, denominators=Denominators.of_mask(inputs.loss_mask))


def test_the_off_policy_mask_measures_the_distance_from_the_sampler() -> None:
    logprobs = torch.full((2, 3), -1.0)
    inputs = LossInputs(
        trainer_logprobs=logprobs.clone().requires_grad_(),
        advantages=torch.tensor([-1.0, -1.0]),
        loss_mask=torch.ones(2, 3, dtype=torch.bool),
        old_logprobs=logprobs,  # no distance from the policy before the update
        rollout_logprobs=torch.tensor([[-1.0] * 3, [-0.5] * 3]),
    )
    chosen = LossOptions(loss_type="grpo", off_policy_threshold=0.1)
    compute_loss(inputs, options=chosen, denominators=Denominators.of_mask(inputs.loss_mask)).loss.backward()
    gradient = inputs.trainer_logprobs.grad
    assert gradient is not None
    assert (gradient[0] != 0).all() and (gradient[1] == 0).all()
