"""What the learner goes on from."""

from grpo_api.resolve import resolve_algorithm
from grpo_api.v1alpha1.spec import AlgorithmSpec
from grpo_runtime.trainer.learner_state import LearnerState, state_after

SAVED = {"skipped_steps": 3, "entropy_coefficient": 0.2, "is_entropy_low": True}
FOLLOWS = {"coefficient": 0.01, "target": 0.3, "delta": 0.001, "minCoefficient": 0.001, "maxCoefficient": 0.5}


def state(skipped_steps: int, coefficient: float, is_low: bool) -> LearnerState:
    return LearnerState(skipped_steps=skipped_steps, entropy_coefficient=coefficient, is_entropy_low=is_low)


def algorithm(entropy: dict[str, float] | None) -> AlgorithmSpec:
    return resolve_algorithm(
        AlgorithmSpec.from_object({"steps": 1} | ({"entropy": entropy} if entropy else {}))
    )


def test_the_same_run_goes_on_where_it_stood() -> None:
    assert state_after(algorithm(FOLLOWS), SAVED, is_of_other_run=False) == state(3, 0.2, True)


def test_of_another_run_only_a_coefficient_that_follows_a_target_is_taken() -> None:
    def taken(entropy: dict[str, float] | None, saved: dict[str, float]) -> LearnerState:
        return state_after(algorithm(entropy), saved, is_of_other_run=True)

    assert taken(FOLLOWS, SAVED) == state(0, 0.2, False)
    assert taken(FOLLOWS, {"entropy_coefficient": 0.0}) == state(0, 0.01, False)
    assert taken({"coefficient": 0.01}, SAVED) == state(0, 0.01, False)
    assert taken(None, SAVED) == state(0, 0.0, False)
