"""A new loss, correction, scaling or KL estimator is a function and a row in the registry.

Each test adds one and uses it, and takes its row away again.
"""

import math

import pytest
import torch

from grpo_runtime.algorithm import reductions
from grpo_runtime.algorithm.advantage_scaling import AdvantageScaling
from grpo_runtime.algorithm.advantages import EPSILON, compute_advantages
from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.kl import KLPenalty
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.metrics import mean_of, metric_values
from grpo_runtime.algorithm.registry import (
    ADVANTAGE_SCALINGS,
    CORRECTION_MODES,
    KL_ESTIMATORS,
    LOSSES,
    Entry,
    Loss,
    find,
)
from grpo_runtime.algorithm.types import (
    AdvantageOptions,
    Denominators,
    LossInputs,
    LossOptions,
    PolicyTerm,
    PolicyTermInputs,
)

MASK = torch.ones(2, 1, dtype=torch.bool)
ADVANTAGES = torch.tensor([1.0, -1.0])


def reinforce(inputs: PolicyTermInputs, options: LossOptions) -> PolicyTerm:
    """-A log pi, without any ratio (REINFORCE)."""
    loss = -inputs.advantages.unsqueeze(1) * inputs.trainer_logprobs
    return PolicyTerm(loss=loss, metrics={"reinforce/loss": mean_of(loss, mask=inputs.mask)})


def inputs(logprobs: torch.Tensor, *, rollout_logprobs: torch.Tensor | None = None) -> LossInputs:
    return LossInputs(
        trainer_logprobs=logprobs,
        advantages=ADVANTAGES,
        loss_mask=MASK,
        rollout_logprobs=rollout_logprobs,
        ref_logprobs=torch.full((2, 1), -1.0),
    )


def test_a_loss_that_is_a_policy_term_and_a_row_trains_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Entry(Loss(policy_term=reinforce, reduction=reductions.token_mean))
    monkeypatch.setitem(LOSSES, "reinforce", row)
    logits = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=1.0)
    for _ in range(20):
        logprobs = logits.log_softmax(0)[:2].unsqueeze(1)
        output = compute_loss(
            inputs(logprobs),
            options=LossOptions(loss_type="reinforce"),
            denominators=Denominators.of_mask(MASK),
        )
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    rewarded, penalised, other = logits.softmax(0).tolist()
    assert rewarded > 0.9 > other > penalised
    assert metric_values(output.metrics)["reinforce/loss"] == pytest.approx(output.loss.item())


def test_a_correction_that_is_a_function_and_a_row_weighs_the_policy_term(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CORRECTION_MODES, "root", Entry(lambda ratio, floor, cap: ratio.sqrt()))
    logprobs = torch.full((2, 1), math.log(0.5), requires_grad=True)
    rollout_logprobs = torch.tensor([[math.log(0.125)], [math.log(0.5)]])
    output = compute_loss(
        inputs(logprobs, rollout_logprobs=rollout_logprobs),
        options=LossOptions(importance_correction=ImportanceCorrection(mode="root")),
        denominators=Denominators.of_mask(MASK),
    )
    assert output.loss.item() == pytest.approx((-1 * math.sqrt(0.5 / 0.125) + 1) / 2)


def test_a_scaling_that_is_a_function_and_a_row_divides_the_advantages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def group_range(grouped: torch.Tensor) -> torch.Tensor:
        spread = grouped.amax(1, keepdim=True) - grouped.amin(1, keepdim=True)
        return spread.expand_as(grouped).reshape(-1)

    monkeypatch.setitem(ADVANTAGE_SCALINGS, "range", Entry(AdvantageScaling(std=group_range)))
    rewards = torch.tensor([[0.0], [4.0], [1.0], [1.0]])
    options = AdvantageOptions(group_size=2, weights=(1.0,), scale_rewards="range")
    result = compute_advantages(rewards, options=options)
    assert result.advantages.tolist() == pytest.approx([-2 / (4 + EPSILON), 2 / (4 + EPSILON), 0.0, 0.0])
    assert result.is_std_zero.tolist() == [False, False, True, True]


def test_a_kl_estimator_that_is_a_function_and_a_row_makes_the_penalty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(KL_ESTIMATORS, "absolute", Entry(torch.abs))
    options = LossOptions(kl=KLPenalty(beta=0.5, estimator="absolute"))
    logprobs = torch.tensor([[-3.0], [-0.5]], requires_grad=True)
    denominators = Denominators.of_mask(MASK)
    penalised = compute_loss(inputs(logprobs), options=options, denominators=denominators).loss
    plain = compute_loss(inputs(logprobs), options=LossOptions(), denominators=denominators).loss
    assert (penalised - plain).item() == pytest.approx(0.5 * (2.0 + 0.5) / 2)


def test_a_name_that_is_in_no_row_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"^kl\.estimator \(k4\) must be one of k1, k2, k3$"):
        find(KL_ESTIMATORS, "k4", option="kl.estimator")
