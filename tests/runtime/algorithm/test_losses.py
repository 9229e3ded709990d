"""Properties of the losses that published numbers do not show."""

import dataclasses
import math
from typing import Any, Literal

import pytest
import torch
from loss_batch import CORRECTION, batch, options, rows

from grpo_runtime.algorithm.entropy_bonus import EntropyBonus, EntropyControl
from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.kl import KLPenalty, kl_k1, kl_k2, kl_k3
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.metrics import merge_metrics, metric_values
from grpo_runtime.algorithm.registry import LOSSES
from grpo_runtime.algorithm.top_entropy import top_entropy_threshold
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions

EXACT_WHEN_CUT = sorted(name for name, row in LOSSES.items() if not row.implementation.depends_on_cut)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("loss_type", EXACT_WHEN_CUT)
def test_the_losses_of_the_parts_of_a_batch_add_up_to_the_loss_of_the_batch(
    loss_type: str, num_ranks: int
) -> None:
    whole = batch()
    denominators = Denominators.of_mask(whole.loss_mask)
    bonus = EntropyBonus(coefficient=0.3)
    chosen = options(loss_type, top_entropy_quantile=0.7, off_policy_threshold=0.05, entropy=bonus)
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
    chosen = options(loss_type, off_policy_threshold=0.05, top_entropy_quantile=0.5)
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
    output = compute_loss(inputs, options=options(loss_type), denominators=denominators)
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
    chosen = options(loss_type, ratio_level=level)
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


def test_the_entropy_threshold_of_more_tokens_than_torch_takes_lies_between_the_two_nearest() -> None:
    num_tokens = 2**24 + 2
    # 0.7 x (num_tokens - 1) is 11744051.9: the last of so many zeros is below that place, the first one above
    entropies = torch.cat([torch.ones(num_tokens - 11744052), torch.zeros(11744052)])
    mask = torch.ones(num_tokens, dtype=torch.bool)
    assert top_entropy_threshold(entropies, mask=mask, quantile=0.3).item() == pytest.approx(0.9, abs=1e-6)


def test_a_token_the_sampler_could_not_score_is_not_corrected() -> None:
    inputs = batch()
    unscored = inputs.rollout_logprobs.clone()
    unscored[0] = torch.nan
    denominators = Denominators.of_mask(inputs.loss_mask)
    chosen = options("dapo", kl=None)
    loss = compute_loss(
        dataclasses.replace(inputs, rollout_logprobs=unscored), options=chosen, denominators=denominators
    )
    same = torch.where(torch.isnan(unscored), inputs.old_logprobs, unscored)
    expected = compute_loss(
        dataclasses.replace(inputs, rollout_logprobs=same), options=chosen, denominators=denominators
    )
    assert loss.loss.item() == expected.loss.item()
    assert math.isfinite(metric_values(loss.metrics)["sampling/sampling_logp_difference/mean"])


def test_sampling_metrics_are_the_distance_to_the_sampler_and_the_bounded_ratios() -> None:
    inputs = LossInputs(
        trainer_logprobs=torch.tensor([[-1.0, -1.0, -1.0], [-2.0, -2.0, 0.0]]),
        advantages=torch.tensor([1.0, -1.0]),
        loss_mask=torch.tensor([[True, True, True], [True, True, False]]),
        rollout_logprobs=torch.tensor([[-1.0, -1.1, -0.9], [-2.5, -2.0, 9.0]]),
    )
    chosen = LossOptions(importance_correction=ImportanceCorrection(cap=1.2))
    values = metric_values(
        compute_loss(inputs, options=chosen, denominators=Denominators.of_mask(inputs.loss_mask)).metrics
    )
    assert values["sampling/sampling_logp_difference/mean"] == pytest.approx(0.7 / 5)
    assert values["sampling/sampling_logp_difference/max"] == pytest.approx(0.5)
    assert values["sampling/importance_sampling_ratio/max"] == pytest.approx(1.2)
    assert values["sampling/importance_sampling_ratio/min"] == pytest.approx(math.exp(-0.1))
    mean = (1 + math.exp(0.1) + math.exp(-0.1) + 1.2 + 1) / 5
    assert values["sampling/importance_sampling_ratio/mean"] == pytest.approx(mean)


def test_without_a_correction_the_distance_to_the_sampler_is_told_and_changes_nothing() -> None:
    inputs = batch()
    chosen = dataclasses.replace(options("dapo"), importance_correction=None)
    denominators = Denominators.of_mask(inputs.loss_mask)
    found = compute_loss(inputs, options=chosen, denominators=denominators)
    without = dataclasses.replace(inputs, rollout_logprobs=None)
    expected = compute_loss(without, options=chosen, denominators=denominators)
    assert found.loss.equal(expected.loss)
    distances = (inputs.old_logprobs - inputs.rollout_logprobs).abs()[inputs.loss_mask]
    assert metric_values(found.metrics) == metric_values(expected.metrics) | {
        "sampling/sampling_logp_difference/mean": pytest.approx(distances.mean().item()),
        "sampling/sampling_logp_difference/max": pytest.approx(distances.max().item()),
    }


def test_dual_clip_bounds_the_loss_of_a_bad_token_with_a_high_ratio() -> None:
    inputs = LossInputs(
        trainer_logprobs=torch.tensor(
            [[math.log(10.0)], [math.log(2.0)]], dtype=torch.float64
        ).requires_grad_(),
        old_logprobs=torch.zeros(2, 1, dtype=torch.float64),
        advantages=torch.tensor([-1.0, -1.0], dtype=torch.float64),
        loss_mask=torch.ones(2, 1, dtype=torch.bool),
    )
    output = compute_loss(
        inputs, options=LossOptions(dual_clip=3.0), denominators=Denominators.of_mask(inputs.loss_mask)
    )
    output.loss.backward()
    assert output.loss.item() == pytest.approx((3.0 + 2.0) / 2)
    assert inputs.trainer_logprobs.grad.flatten().tolist() == pytest.approx([0.0, 1.0])


def test_the_kl_estimators_are_the_published_formulas() -> None:
    log_difference = torch.tensor([-0.5, 0.0, 0.7], dtype=torch.float64)
    ratio = log_difference.exp()
    assert torch.allclose(kl_k1(log_difference), -ratio.log())
    assert torch.allclose(kl_k2(log_difference), ratio.log() ** 2 / 2)
    assert torch.allclose(kl_k3(log_difference), (ratio - 1) - ratio.log())


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
