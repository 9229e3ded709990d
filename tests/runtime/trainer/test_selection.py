"""Which groups a step is trained on, with and without dynamic sampling."""

import math

import pytest
import torch

from grpo_runtime.algorithm.dynamic_sampling import differing_groups
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.rollout.interface import Rollout
from grpo_runtime.trainer.scoring import Scores, merge_scores
from grpo_runtime.trainer.selection import Selection

OPTIONS = AdvantageOptions(group_size=2, weights=(1.0, -1.0))


def rollouts(*tokens: int) -> list[Rollout]:
    return [Rollout((1,), (token,), (-1.0,), (), True, "fake") for token in tokens]


def scores(*values: float | None) -> Scores:
    return Scores([(value, 0.0) for value in values], {})


@pytest.mark.parametrize(
    ("rewards", "sum_differs", "one_differs"),
    [
        ([[1.0, 0.0], [0.0, 0.0]], True, True),
        ([[0.1, 0.0], [0.1, 0.0]], False, False),
        ([[1.0, 1.0], [0.0, 0.0]], False, True),
        ([[1.0, 0.0], [math.nan, math.nan]], False, False),
        ([[math.nan, math.nan], [math.nan, math.nan]], False, False),
        ([[1.0, math.nan], [0.5, math.nan]], True, True),
        ([[3e38, -3e38], [3e38, -2e38]], True, True),
    ],
)
def test_a_group_teaches_something_where_what_its_advantages_are_made_of_differs(
    rewards: list[list[float]], sum_differs: bool, one_differs: bool
) -> None:
    found = torch.tensor([*rewards, [1.0, 0.0], [1.0, 0.0]])
    gdpo = AdvantageOptions(group_size=2, weights=OPTIONS.weights, aggregation="normalize_then_sum")
    assert differing_groups(found, options=OPTIONS).tolist() == [sum_differs, False]
    assert differing_groups(found, options=gdpo).tolist() == [one_differs, False]


def test_a_reward_of_weight_0_keeps_no_group() -> None:
    found = torch.tensor([[1.0, 0.0], [1.0, 9.0]])
    options = AdvantageOptions(group_size=2, weights=(1.0, 0.0), aggregation="normalize_then_sum")
    assert differing_groups(found, options=options).tolist() == [False]


def test_groups_of_equal_rewards_are_replaced_round_by_round_until_the_step_has_enough() -> None:
    selection = Selection(num_groups=3, max_rounds=4, options=OPTIONS)
    assert selection.num_missing == 3
    selection.take(rollouts(1, 2, 3, 4, 5, 6), scores(1, 1, 0, 1, None, 0))
    assert (selection.num_missing, selection.num_generated) == (2, 3)
    selection.take(rollouts(7, 8, 9, 10), scores(0, 0, 2, 0))
    assert (selection.num_missing, selection.num_generated) == (1, 5)
    selection.take(rollouts(11, 12), scores(0, 3))
    assert selection.num_missing == 0
    found = selection.selected()
    assert [rollout.completion_ids for rollout in found.rollouts] == [(3,), (4,), (9,), (10,), (11,), (12,)]
    assert [value for value, _ in found.scores.values] == [0, 1, 2, 0, 0, 3]
    assert found.num_sampled_tokens == 12
    assert found.metrics == {
        "dynamic_sampling/rounds": 3.0,
        "dynamic_sampling/generated_groups": 6.0,
        "dynamic_sampling/dropped_groups": 3.0,
        "dynamic_sampling/generated_reward": pytest.approx(8 / 12),
    }


def test_after_the_last_round_a_step_is_trained_on_the_groups_that_it_has() -> None:
    selection = Selection(num_groups=2, max_rounds=2, options=OPTIONS)
    for token in (1, 11):
        selection.take(rollouts(token, token + 1, token + 2, token + 3), scores(1, 1, 0, token))
        if token == 1:
            assert selection.num_missing == 1
    # the second round was asked for one group only in a run; that it brings more changes nothing here
    assert selection.num_missing == 0
    kept = [rollout.completion_ids[0] for rollout in selection.selected().rollouts]
    assert kept == [3, 4, 13, 14]


def test_a_step_without_any_group_that_differs_is_its_first_round() -> None:
    selection = Selection(num_groups=1, max_rounds=2, options=OPTIONS)
    for token in (1, 3):
        selection.take(rollouts(token, token + 1), scores(1, 1))
    found = selection.selected()
    assert [rollout.completion_ids[0] for rollout in found.rollouts] == [1, 2]
    assert found.metrics["dynamic_sampling/dropped_groups"] == 2.0


def test_without_dynamic_sampling_a_step_is_its_only_round() -> None:
    selection = Selection(num_groups=2, max_rounds=None, options=OPTIONS)
    selection.take(rollouts(1, 2, 3, 4), scores(1, 1, 0, 0))
    assert selection.num_missing == 0
    found = selection.selected()
    assert len(found.rollouts) == 4 and found.metrics == {}


def test_failures_of_rounds_add_up_and_what_was_logged_is_the_mean_of_all_completions() -> None:
    first = Scores([(1.0,)] * 3, {"rewards/a/failures": 1.0, "mine": 4.0})
    second = Scores([(0.0,)], {"rewards/a/failures": 2.0, "mine": 8.0, "other": 0.1})
    merged = merge_scores([first, second])
    assert [value for (value,) in merged.values] == [1.0, 1.0, 1.0, 0.0]
    assert merged.metrics == {"rewards/a/failures": 3.0, "mine": 5.0, "other": 0.1}


def test_a_reward_of_negative_weight_keeps_a_group_as_one_of_positive_weight_does() -> None:
    found = torch.tensor([[1.0, 0.0], [1.0, 9.0]])
    options = AdvantageOptions(group_size=2, weights=(1.0, -0.5), aggregation="normalize_then_sum")
    assert differing_groups(found, options=options).tolist() == [True]
