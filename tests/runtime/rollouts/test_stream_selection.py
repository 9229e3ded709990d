"""Which groups a step is trained on, with and without dynamic sampling."""

import math

import pytest
import torch

from grpo_api.contract.left_out import MOST_FAILED_IN_A_ROW
from grpo_runtime.algorithm.advantages import differing_groups
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rollouts.failures import FailuresInARow
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import FunctionFailedError, GenerateRequest, GivenUp
from grpo_runtime.rollouts.stream import Selection

OPTIONS = AdvantageOptions(group_size=2, weights=(1.0, -1.0))


PROMPT = Prompt(index=0, content="a=", columns={})
REQUESTS = [GenerateRequest((1,), seed=seed) for seed in (0, 1)]


def groups(*values: float | None, first: int = 0) -> list[Group]:
    """Groups of two with these rewards, numbered from `first`."""
    return [
        Group(
            step=0,
            number=first + place // 2,
            prompt=PROMPT,
            requests=REQUESTS,
            columns=(Column(values=values[place : place + 2]), Column(values=[0.0, 0.0])),
        )
        for place in range(0, len(values), 2)
    ]


def selection_of(
    num_groups: int, *, max_rounds: int | None, failures: FailuresInARow | None = None
) -> Selection:
    """Of a step with so many groups."""
    return Selection(
        num_groups=num_groups,
        max_rounds=max_rounds,
        options=OPTIONS,
        failures=failures or FailuresInARow(groups_per_step=num_groups),
    )


def numbers(found: list[Group]) -> list[int]:
    return [group.number for group in found]


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
    selection = selection_of(3, max_rounds=4)
    assert selection.num_missing == 3
    selection.take(groups(1, 1, 0, 1, None, 0))
    assert (selection.num_missing, len(selection.sampled)) == (2, 3)
    selection.take(groups(0, 0, 2, 0, first=3))
    assert (selection.num_missing, len(selection.sampled)) == (1, 5)
    selection.take(groups(0, 3, first=5))
    assert selection.num_missing == 0
    assert (numbers(selection.selected()), numbers(selection.sampled)) == ([1, 4, 5], [0, 1, 2, 3, 4, 5])
    assert selection.metrics() == {
        "dynamic_sampling/rounds": 3.0,
        "dynamic_sampling/generated_groups": 6.0,
        "dynamic_sampling/filtered_groups": 3.0,
        "dynamic_sampling/generated_reward": pytest.approx(8 / 12),
    }


def test_after_the_last_round_a_step_is_trained_on_the_groups_that_it_has() -> None:
    selection = selection_of(2, max_rounds=2)
    for first in (0, 2):
        selection.take(groups(1, 1, 0, first + 1, first=first))
        if first == 0:
            assert selection.num_missing == 1
    # the second round was asked for one group only in a run; that it brings more changes nothing here
    assert selection.num_missing == 0
    assert numbers(selection.selected()) == [1, 3]


def test_a_step_without_any_group_that_differs_is_its_first_round() -> None:
    selection = selection_of(1, max_rounds=2)
    for first in (0, 1):
        selection.take(groups(1, 1, first=first))
    assert numbers(selection.selected()) == [0]
    assert selection.metrics()["dynamic_sampling/filtered_groups"] == 2.0


def test_without_dynamic_sampling_a_step_is_its_only_round() -> None:
    selection = selection_of(2, max_rounds=None)
    selection.take(groups(1, 1, 0, 0))
    assert selection.num_missing == 0
    assert numbers(selection.selected()) == [0, 1] and selection.metrics() == {}


def failed(*numbers: int) -> list[Group]:
    """Groups that are left out."""
    given_up = [GivenUp("the game server is away"), GivenUp("the agent raised")]
    return [
        Group(step=0, number=number, prompt=PROMPT, requests=REQUESTS, rollouts=list(given_up))
        for number in numbers
    ]


def test_others_take_the_places_of_groups_that_are_left_out_until_the_step_has_enough() -> None:
    selection = selection_of(3, max_rounds=None)
    selection.take([*groups(1, 1), *failed(1, 2)])
    assert (selection.num_missing, selection.num_begun) == (2, 3)
    selection.take([*failed(3), *groups(0, 1, first=4)])
    assert (selection.num_missing, selection.num_begun) == (1, 5)
    selection.take(groups(0, 0, first=5))
    assert (selection.num_missing, selection.metrics()) == (0, {})
    assert numbers(selection.selected()) == numbers(selection.sampled) == [0, 4, 5]
    assert numbers(selection.left_out) == [1, 2, 3]


def test_with_dynamic_sampling_too_and_they_are_no_rounds_of_their_own_at_the_end() -> None:
    selection = selection_of(2, max_rounds=2)
    selection.take([*failed(0), *groups(1, 1, first=1)])
    assert selection.num_missing == 2
    selection.take([*failed(2), *groups(0, 1, first=3)])
    # the last round is over, but for the place of a group that is left out
    assert selection.num_missing == 1
    selection.take(failed(4))
    assert selection.num_missing == 1
    selection.take(groups(1, 1, first=5))
    assert selection.num_missing == 0
    assert numbers(selection.selected()) == [3]
    assert selection.metrics()["dynamic_sampling/rounds"] == 2.0
    assert selection.metrics()["dynamic_sampling/generated_groups"] == 3.0


def test_many_in_a_row_without_one_that_is_sampled_end_the_run_with_the_last_failure() -> None:
    selection = selection_of(2, max_rounds=None)
    for first in range(0, MOST_FAILED_IN_A_ROW - 2, 2):
        selection.take(failed(first, first + 1))
    selection.take([*failed(14), *groups(0, 1, first=15)])
    for number in range(MOST_FAILED_IN_A_ROW - 1):
        selection.take(failed(20 + number))
    with pytest.raises(FunctionFailedError, match="the agent raised"):
        selection.take(failed(40))


def by_parity(*environments: str, groups_per_step: int) -> FailuresInARow:
    """Groups with even numbers are of the first environment, those with odd ones of the second."""
    return FailuresInARow(
        groups_per_step=groups_per_step,
        environments=environments,
        environment=lambda group: ("go", "chess")[group.number % 2],
    )


def test_rounds_of_one_environment_alone_end_no_run_while_another_one_can_be_sampled() -> None:
    failures = by_parity("go", "chess", groups_per_step=1)
    for step in range(3):
        selection = selection_of(1, max_rounds=None, failures=failures)
        for number in range(0, 2 * MOST_FAILED_IN_A_ROW, 2):
            selection.take(failed(number))
        selection.take(groups(0, 1, first=99))
        assert (selection.num_missing, numbers(selection.selected())) == (0, [99]), step


def test_many_in_a_row_of_every_environment_that_the_data_has_do_across_steps() -> None:
    failures = by_parity("go", "chess", groups_per_step=1)
    selection_of(1, max_rounds=None, failures=failures).take(groups(0, 1, first=1))
    selection = selection_of(1, max_rounds=None, failures=failures)
    for number in [*range(0, 60, 2), *range(1, 2 * MOST_FAILED_IN_A_ROW - 2, 2)]:
        selection.take(failed(number))
    with pytest.raises(FunctionFailedError, match="the agent raised"):
        selection.take(failed(99))
    # nobody waits for one that makes no group
    selection = selection_of(1, max_rounds=None, failures=by_parity("go", groups_per_step=1))
    with pytest.raises(FunctionFailedError, match="the agent raised"):
        selection.take(failed(*range(0, 2 * MOST_FAILED_IN_A_ROW, 2)))


def test_a_reward_of_negative_weight_keeps_a_group_as_one_of_positive_weight_does() -> None:
    found = torch.tensor([[1.0, 0.0], [1.0, 9.0]])
    options = AdvantageOptions(group_size=2, weights=(1.0, -0.5), aggregation="normalize_then_sum")
    assert differing_groups(found, options=options).tolist() == [True]
