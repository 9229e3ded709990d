"""Advantages and reward metrics against TRL 1.16.0, and against numbers worked out by hand where TRL has
none."""

import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from trl_case import advantage_misses

from grpo_runtime.algorithm.advantages import compute_advantages, reward_metrics
from grpo_runtime.algorithm.types import AdvantageOptions

FIXTURES = Path(__file__).parent / "fixtures"
PUBLISHED = json.loads((FIXTURES / "advantages.json").read_text())
CASES = PUBLISHED["cases"] | json.loads((FIXTURES / "advantages_more.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES)
def test_advantages_and_reward_metrics_are_those_of_trl(case: str) -> None:
    assert advantage_misses(PUBLISHED["inputs"], CASES[case]) == []


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    rewards = torch.tensor([[1.0], [0.0], [0.5], [math.nan]], dtype=torch.float64)
    options = AdvantageOptions(group_size=4, weights=(1.0,), scale_rewards="none", baseline="leave_one_out")
    result = compute_advantages(rewards, options=options)
    assert result.advantages.tolist() == pytest.approx([1 - 0.25, 0 - 0.75, 0.5 - 0.5, 0.0])


def test_a_negative_weight_reverses_the_order_of_a_group() -> None:
    rewards = torch.tensor([[1.0], [0.0], [0.5], [0.25]])
    plus = compute_advantages(rewards, options=AdvantageOptions(group_size=4, weights=(1.0,)))
    minus = compute_advantages(rewards, options=AdvantageOptions(group_size=4, weights=(-1.0,)))
    assert torch.allclose(plus.advantages, -minus.advantages)
    assert minus.rewards.tolist() == [-1.0, -0.0, -0.5, -0.25]


def test_a_batch_that_nothing_scored_teaches_nothing_and_reports_no_reward() -> None:
    rewards = torch.full((4, 2), math.nan)
    result = compute_advantages(rewards, options=AdvantageOptions(group_size=2, weights=(1.0, 1.0)))
    assert result.advantages.tolist() == [0.0] * 4
    assert reward_metrics(rewards, names=["a", "b"], advantages=result) == {"frac_reward_zero_std": 0.0}


def test_a_group_with_one_scored_completion_teaches_nothing() -> None:
    rewards = torch.tensor([[1.0], [math.nan], [0.0], [1.0]])
    result = compute_advantages(rewards, options=AdvantageOptions(group_size=2, weights=(1.0,)))
    assert result.advantages[:2].tolist() == [0.0, 0.0]
    assert result.advantages[2] < 0 < result.advantages[3]


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("group_size", [3, 5, 6, 7, 12])
def test_equal_rewards_are_advantages_of_exactly_0(
    group_size: int, baseline: Literal["group_mean", "leave_one_out"], scale_rewards: str
) -> None:
    options = AdvantageOptions(
        group_size=group_size, weights=(1.0,), baseline=baseline, scale_rewards=scale_rewards
    )
    equal = torch.tensor([hundredths / 100 for hundredths in range(1, 100)]).repeat_interleave(group_size)
    # a mean that is rounded
    assert (equal.view(-1, group_size).mean(1) != equal[::group_size]).any()
    unequal = torch.arange(group_size) / 10
    found = compute_advantages(torch.cat([equal, unequal]).unsqueeze(1), options=options).advantages
    assert (found[:-group_size] == 0).all()
    assert (found[-group_size:] != 0).sum() >= group_size - 1


@pytest.mark.parametrize("group_size", [3, 5, 6, 7, 12])
def test_equal_rewards_of_a_group_are_advantages_of_exactly_0_where_each_function_is_normalised(
    group_size: int,
) -> None:
    options = AdvantageOptions(group_size=group_size, weights=(1.0,), aggregation="normalize_then_sum")
    equal = torch.tensor([hundredths / 100 for hundredths in range(1, 100)]).repeat_interleave(group_size)
    found = compute_advantages(equal.unsqueeze(1), options=options).advantages
    assert found.tolist() == [0.0] * len(equal)


LARGEST = torch.finfo(torch.float32).max
ADVANTAGES: list[dict[str, Any]] = [
    *({"scale_rewards": scale} for scale in ("group", "batch", "none")),
    *({"scale_rewards": scale, "baseline": "leave_one_out"} for scale in ("group", "batch", "none")),
    {"aggregation": "normalize_then_sum"},
]


@pytest.mark.parametrize("size", [1e16, 1e19, 1e30, LARGEST])
@pytest.mark.parametrize("changes", ADVANTAGES, ids=lambda changes: "-".join(changes.values()))
def test_advantages_of_rewards_up_to_the_largest_are_those_of_exact_numbers(
    changes: dict[str, Any], size: float
) -> None:
    options = AdvantageOptions(group_size=3, weights=(1000.0, -1.0), **changes)
    shares = torch.tensor([[1.0, 0.5], [-1.0, 0.25], [0.0, math.nan], [0.5, 1.0], [0.75, -1.0], [0.5, 0.0]])
    rewards = shares * size
    found = compute_advantages(rewards, options=options)
    exact = compute_advantages(rewards.double(), options=options)
    assert found.advantages.dtype == torch.float32
    assert torch.equal(found.advantages, exact.advantages.clamp(-LARGEST, LARGEST).float())
    assert found.advantages.isfinite().all() and (found.advantages != 0).sum() >= 4
    assert not found.is_std_zero.any()
    metrics = reward_metrics(rewards, names=["a", "b"], advantages=found)
    assert metrics["reward"] == pytest.approx(exact.rewards.nanmean().item())
    assert metrics["reward_std"] == pytest.approx(exact.rewards.std().item())
    assert metrics["rewards/a/std"] == pytest.approx(rewards[:, 0].double().std().item())
    assert metrics["rewards/b/mean"] == pytest.approx(rewards[:, 1].double().nanmean().item())


def test_the_largest_rewards_of_the_same_sign_are_told_apart() -> None:
    rewards = torch.tensor([[LARGEST], [LARGEST / 2], [LARGEST], [LARGEST / 2]])
    result = compute_advantages(rewards, options=AdvantageOptions(group_size=4, weights=(1.0,)))
    assert result.advantages.tolist() == pytest.approx([3**0.5 / 2, -(3**0.5) / 2] * 2)


@pytest.mark.parametrize(("group_size", "weights"), [(3, (1.0,)), (2, (1.0, 1.0))])
def test_shapes_that_do_not_fit_are_refused(group_size: int, weights: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"weights|whole groups"):
        compute_advantages(
            torch.zeros(4, 1), options=AdvantageOptions(group_size=group_size, weights=weights)
        )
