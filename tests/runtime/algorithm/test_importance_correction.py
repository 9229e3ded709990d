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
    distances = (inputs.old_logprobs - inputs.rollout_logprobs).abs()[inputs.loss_mask]
    assert metric_values(found.metrics) == metric_values(expected.metrics) | {
        "sampling/sampling_logp_difference/mean": pytest.approx(distances.mean().item()),
        "sampling/sampling_logp_difference/max": pytest.approx(distances.max().item()),
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
