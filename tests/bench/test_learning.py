"""The bench that holds small jobs to the rewards they must reach."""

import json

import pytest

from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.spec import LossType
from grpo_learning.cases import CASES, LEARNING_RATES, Case
from grpo_learning.controls import constant_reward, random_reward
from grpo_learning.gates import Gate, Outcome, outcome_of
from grpo_learning.report import header, json_line, row


def test_an_outcome_is_the_mean_of_the_first_and_the_last_steps() -> None:
    found = outcome_of([0.0, 0.2, 0.5, 0.6, 1.0], window=2)
    assert (found.first, found.last, found.gain) == pytest.approx((0.1, 0.8, 0.7))
    with pytest.raises(ValueError, match="too few"):
        outcome_of([0.0, 0.2, 0.5], window=2)


@pytest.mark.parametrize(
    ("gate", "is_reached", "misses"),
    [
        (Gate(mean_at_least=0.7), True, []),
        (Gate(mean_at_least=0.8), False, ["the mean is 0.700, which is below 0.8"]),
        (Gate(each_at_least=0.65), False, ["the lowest is 0.600, which is below 0.65"]),
        (Gate(each_at_most=0.7), False, ["the highest is 0.800, which is above 0.7"]),
        (Gate(gain_at_least=0.5), True, []),
        (Gate(gain_at_least=0.6), False, ["the lowest gain is 0.500, which is below 0.6"]),
    ],
)
def test_a_gate_names_every_bound_that_is_missed(gate: Gate, is_reached: bool, misses: list[str]) -> None:
    found = gate.misses([Outcome(0.1, 0.6), Outcome(0.1, 0.8)])
    assert (not found, found) == (is_reached, misses)


def test_a_reward_that_is_no_number_reaches_nothing() -> None:
    assert Gate(each_at_least=0.5).misses([Outcome(0.0, float("nan"))])


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_case_is_a_valid_job_with_a_gate(case: Case) -> None:
    metadata = {"name": "learning", "namespace": "default", "uid": "u"}
    job = parse_job({**case.job(3), "metadata": metadata})
    assert job.spec.algorithm.seed == 3
    assert str(case.gate)
    assert job.spec.algorithm.steps >= 2 * case.window


def test_every_loss_of_a_job_is_held_to_the_copy_task() -> None:
    assert set(LEARNING_RATES) == {loss.value for loss in LossType}


def test_controls_give_the_same_rewards_again_and_say_nothing_of_the_answer() -> None:
    texts = ["aaaa", "bbbb"] * 50
    assert random_reward(texts) == random_reward(texts)
    assert 0.4 < sum(random_reward(texts)) / 100 < 0.6
    assert set(constant_reward(texts)) == {0.5}


def test_a_row_has_a_number_for_each_seed() -> None:
    case, outcomes = CASES[0], [Outcome(0.03, 0.97), Outcome(0.04, 0.9)]
    text = row(case, outcomes, seconds=61.4, misses=[])
    assert text.count("|") == header().splitlines()[0].count("|")
    assert "0.970, 0.900" in text and "reached" in text
    line = json.loads(json_line(case, outcomes, seconds=61.4, misses=["missed"]))
    assert (line["case"], line["misses"]) == (case.name, ["missed"])
