"""The correction for the engine that sampled, and what is told of its distance."""

import dataclasses
import math

import pytest
import torch
from loss_batch import batch, options

from grpo_runtime.algorithm.importance_correction import ImportanceCorrection, distance_metrics
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.metrics import metric_values
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions


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
    differences = (inputs.old_logprobs - inputs.rollout_logprobs)[inputs.loss_mask]
    distances = differences.abs()
    assert metric_values(found.metrics) == metric_values(expected.metrics) | {
        "sampling/sampling_logp_difference/mean": pytest.approx(distances.mean().item()),
        "sampling/sampling_logp_difference/max": pytest.approx(distances.max().item()),
        "sampling/mismatch_kl/k1": pytest.approx(-differences.mean().item()),
        "sampling/mismatch_kl/k3": pytest.approx((differences.exp() - 1 - differences).mean().item()),
    }


def test_the_mean_distance_is_over_tokens_that_the_sampler_has_scored() -> None:
    mask = torch.tensor([[True, True, False]])
    metrics = distance_metrics(
        old_logprobs=torch.tensor([[-1.0, -1.0, -1.0]]),
        rollout_logprobs=torch.tensor([[-1.5, torch.nan, -9.0]]),
        mask=mask,
    )
    values = metric_values(metrics)
    assert values["sampling/sampling_logp_difference/mean"] == 0.5
    assert values["sampling/sampling_logp_difference/max"] == 0.5


def test_the_distance_is_over_tokens_of_the_current_version_and_the_divergence_over_all() -> None:
    trainer = torch.tensor([[-1.0, -1.0, -1.0, -1.0]], dtype=torch.float64)
    sampler = torch.tensor([[-1.5, -3.0, -0.8, torch.nan]], dtype=torch.float64)
    everything = torch.ones(1, 4, dtype=torch.bool)

    def values(is_current: list[bool]) -> dict[str, float]:
        current = torch.tensor([is_current])
        return metric_values(
            distance_metrics(
                old_logprobs=trainer, rollout_logprobs=sampler, mask=everything, is_current=current
            )
        )

    divergence = {
        "sampling/mismatch_kl/k1": pytest.approx(-(0.5 + 2.0 - 0.2) / 3),
        "sampling/mismatch_kl/k3": pytest.approx(
            sum(math.exp(x) - 1 - x for x in (0.5, 2.0, -0.2)) / 3, rel=1e-12
        ),
    }
    assert values([True, False, True, True]) == divergence | {
        "sampling/sampling_logp_difference/mean": pytest.approx(0.35),
        "sampling/sampling_logp_difference/max": pytest.approx(0.5),
    }
    # nothing is compared: no 0, which would say that they agree
    assert values([False, False, False, True]) == divergence
    without = distance_metrics(old_logprobs=trainer, rollout_logprobs=sampler, mask=everything)
    assert values([True] * 4) == metric_values(without)


def test_the_divergence_of_engines_with_other_weights_is_a_number() -> None:
    mask = torch.ones(1, 1, dtype=torch.bool)
    metrics = distance_metrics(
        old_logprobs=torch.tensor([[-1.0]]), rollout_logprobs=torch.tensor([[-400.0]]), mask=mask
    )
    assert metric_values(metrics)["sampling/mismatch_kl/k3"] == pytest.approx(math.exp(20) - 21)
