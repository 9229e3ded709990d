"""The bench that holds small jobs to the rewards they must reach."""

import pytest

from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.spec import LossType
from grpo_learning.cases import CASES, LEARNING_RATES
from grpo_learning.gates import Gate, Outcome, outcome_of
from grpo_learning.uncorrected import resolve_uncorrected


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


def test_a_gate_compares_the_mean_with_that_of_the_case_beside_it_and_asks_for_old_completions() -> None:
    gate, beside = Gate(within=0.02, staleness_at_least=2), [Outcome(0.0, 0.99), Outcome(0.0, 0.97)]
    assert gate.misses([Outcome(0.0, 0.961, staleness=2.0)], beside=beside) == []
    assert gate.misses([Outcome(0.0, 0.95, staleness=1.5)], beside=beside) == [
        "the lowest staleness is 1.500, which is below 2",
        "the mean is 0.950, which is below 0.96",
    ]


def test_a_case_is_compared_with_one_that_is_trained_before_it() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert not [name for name in names if "," in name], "--cases has commas between names"
    for case in CASES:
        assert (case.beside is None) == (case.gate.within is None)
        assert case.beside is None or names.index(case.beside) < names.index(case.name)


def test_an_uncorrected_run_differs_from_the_corrected_one_in_its_correction_alone() -> None:
    case = next(case for case in CASES if not case.is_corrected)
    metadata = {"name": "learning", "namespace": "default", "uid": "u"}
    job = parse_job({**case.job(0), "metadata": metadata})
    found, corrected = resolve_uncorrected(job), resolve(job)
    assert not found.algorithm.importance_correction.is_on
    assert corrected.algorithm.importance_correction.is_on
    others = {"algorithm": {"importance_correction"}}
    assert found.model_dump(exclude=others) == corrected.model_dump(exclude=others)


def test_every_case_is_a_valid_job_with_a_gate() -> None:
    metadata = {"name": "learning", "namespace": "default", "uid": "u"}
    for case in CASES:
        job = parse_job({**case.job(3), "metadata": metadata})
        assert job.spec.algorithm.seed == 3
        assert str(case.gate)
        assert job.spec.algorithm.steps >= 2 * case.window


def test_every_loss_of_a_job_is_held_to_the_copy_task() -> None:
    assert set(LEARNING_RATES) == {loss.value for loss in LossType}
