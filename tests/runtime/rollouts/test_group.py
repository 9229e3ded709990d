"""Groups of which samples were given up: which are trained on, and with which statistics."""

import math

import pytest
import torch

from grpo_runtime.algorithm.advantages import EPSILON, compute_advantages
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rollouts.group import Group, advantages_of, completions_of, rewards_of, whole_rewards_of
from grpo_runtime.rollouts.interface import GenerateRequest, GivenUp, Rollout

PROMPT = Prompt(index=0, content="a=", columns={})


def group(*rewards: float | None, given_up: tuple[int, ...] = (), is_evaluation: bool = False) -> Group:
    """Scored with these rewards, of the samples that were not given up."""
    size = len(rewards) + len(given_up)
    rollout = Rollout((1,), (2,), (-1.0,), (), True, "fake")
    return Group(
        step=0,
        number=0,
        prompt=PROMPT,
        requests=[GenerateRequest((1,), seed=seed, is_evaluation=is_evaluation) for seed in range(size)],
        rollouts=[GivenUp("it raised") if place in given_up else rollout for place in range(size)],
        columns=(Column(values=list(rewards)),),
    )


@pytest.mark.parametrize(("size", "least"), [(2, 2), (3, 2), (4, 2), (5, 3), (8, 4), (9, 5), (16, 8)])
def test_a_group_is_left_out_where_less_than_half_of_it_or_than_two_are_there(size: int, least: int) -> None:
    for num_there in range(size + 1):
        made = group(*[0.0] * num_there, given_up=tuple(range(num_there, size)))
        assert made.is_left_out == (num_there < least), num_there
        assert made.is_sampled and not made.missing and len(made.completions) == num_there


def test_a_group_with_samples_left_to_make_is_left_out_once_too_many_are_given_up() -> None:
    made = group(0.0, 0.0, 0.0, 0.0)
    made.rollouts = [None, GivenUp("a"), None, GivenUp("b")]
    assert (made.missing, made.is_sampled, made.is_left_out) == ([0, 2], False, False)
    made.rollouts[0] = GivenUp("c")
    assert made.is_left_out
    made.forget_samples()
    assert made.missing == [0, 1, 2, 3] and not made.is_left_out


def test_one_completion_of_a_group_of_an_evaluation_is_enough() -> None:
    assert not group(0.0, given_up=(1, 2), is_evaluation=True).is_left_out
    assert group(given_up=(0, 1), is_evaluation=True).is_left_out
    assert not group(0.0, is_evaluation=True).is_left_out


PART = group(1.0, 0.0, 1.0, given_up=(2,))
WHOLE = group(0.0, 2.0, 0.0, 2.0)
THIRD = 1 / 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [THIRD / (math.sqrt(THIRD) + EPSILON), -2 * THIRD / (math.sqrt(THIRD) + EPSILON)]),
        ({"scale_rewards": "none"}, [THIRD, -2 * THIRD]),
        ({"scale_rewards": "none", "baseline": "leave_one_out"}, [THIRD * 3 / 2, -1.0]),
    ],
    ids=["by its own deviation", "by nothing", "from the mean of the others"],
)
def test_the_statistics_of_a_group_are_those_of_the_completions_that_are_there(
    options: dict[str, str], expected: list[float]
) -> None:
    """The mean of 1, 0 and 1 is 2/3, and their deviation is the root of 1/3."""
    made = AdvantageOptions(group_size=4, weights=(1.0,), **options)  # type: ignore[arg-type]
    found = advantages_of([PART, WHOLE], options=made)
    positive, negative = expected
    assert found.advantages[:3].tolist() == pytest.approx([positive, negative, positive])
    alone = compute_advantages(torch.tensor([[0.0], [2.0], [0.0], [2.0]]), options=made)
    assert found.advantages[3:].tolist() == alone.advantages.tolist()
    assert found.rewards.tolist() == [1.0, 0.0, 1.0, 0.0, 2.0, 0.0, 2.0]


def test_the_deviation_of_a_batch_is_that_of_all_completions_that_are_there() -> None:
    options = AdvantageOptions(group_size=4, weights=(1.0,), scale_rewards="batch")
    found = advantages_of([PART, WHOLE], options=options)
    std = torch.tensor([1.0, 0.0, 1.0, 0.0, 2.0, 0.0, 2.0]).std().item()
    assert found.advantages.tolist()[:2] == pytest.approx(
        [THIRD / (std + EPSILON), -2 * THIRD / (std + EPSILON)]
    )


@pytest.mark.parametrize("given_up", [(), (0,), (3,), (1, 2)])
@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_what_was_given_up_has_no_reward_and_changes_nothing_of_the_others(
    given_up: tuple[int, ...], aggregation: str
) -> None:
    """A group of those that are there, and no other, has the same advantages. So no reward of 0 is among
    them, which nobody gave."""
    rewards = [0.25, 1.0, 0.75, 0.5][len(given_up) :]
    options = [
        AdvantageOptions(group_size=size, weights=(1.0,), aggregation=aggregation)  # type: ignore[arg-type]
        for size in (4, len(rewards))
    ]
    made = group(*rewards, given_up=given_up)
    found = advantages_of([made], options=options[0])
    alone = compute_advantages(torch.tensor(rewards)[:, None], options=options[1])
    assert found.advantages.tolist() == pytest.approx(alone.advantages.tolist())
    assert found.is_std_zero.tolist() == [False] * len(rewards)
    assert rewards_of([made]).flatten().tolist() == rewards
    whole = whole_rewards_of([made]).flatten()
    assert whole.isnan().nonzero().flatten().tolist() == list(given_up)
    assert len(completions_of([made])) == len(found.advantages) == len(rewards)
