"""From the numbers of a spec to those of the loss."""

from typing import Any

import pytest

from grpo_api.resolve import resolve_algorithm
from grpo_api.v1alpha1.spec import AlgorithmSpec
from grpo_runtime.algorithm.entropy_bonus import EntropyBonus, EntropyControl
from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.kl import KLPenalty
from grpo_runtime.algorithm.types import LossOptions
from grpo_runtime.trainer.algorithm_options import entropy_control, loss_options


def options(**changes: Any) -> LossOptions:
    return loss_options(resolve_algorithm(AlgorithmSpec.from_object({"steps": 1, **changes})))


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo", "dr_grpo"])
def test_every_number_of_the_spec_reaches_the_loss(loss_type: str) -> None:
    correction = {"mode": "mask", "floor": 0.25, "cap": 4.0}
    found = options(lossType=loss_type, clipLow=0.1, clipHigh=0.3, importanceCorrection=correction)
    assert found == LossOptions(
        loss_type=loss_type,
        clip_low=0.1,
        clip_high=0.3,
        importance_correction=ImportanceCorrection(level="token", mode="mask", floor=0.25, cap=4.0),
    )


def test_a_correction_that_is_not_wanted_is_none() -> None:
    assert options(importanceCorrection={"mode": "none"}).importance_correction is None
    truncated = options().importance_correction
    assert truncated == ImportanceCorrection(level="token", mode="truncate", floor=0.0, cap=2.0)


@pytest.mark.parametrize(
    ("changes", "cap"),
    [
        ({}, 0.2),
        ({"lossType": "cispo"}, 5.0),
        ({"lossType": "cispo", "clipHigh": 4}, 4.0),
        ({"clipHigh": 0.28}, 0.28),
    ],
)
def test_the_upper_clip_is_that_of_the_loss(changes: dict[str, Any], cap: float) -> None:
    assert options(**changes).clip_high == cap


@pytest.mark.parametrize(
    ("kl", "penalty"),
    [
        ({"beta": 0}, None),
        ({"beta": 0.04}, KLPenalty(beta=0.04, estimator="k3", is_bias_corrected=True)),
        (
            {"beta": 0.1, "estimator": "k1", "biasCorrection": False},
            KLPenalty(beta=0.1, estimator="k1", is_bias_corrected=False),
        ),
    ],
)
def test_a_penalty_of_0_is_none(kl: dict[str, Any], penalty: KLPenalty | None) -> None:
    assert options(kl=kl).kl == penalty


@pytest.mark.parametrize(
    ("entropy", "bonus"),
    [
        ({"coefficient": 0}, None),
        ({"coefficient": 0.01}, EntropyBonus(coefficient=0.01)),
        ({"coefficient": 0, "target": 0.2}, EntropyBonus(coefficient=0)),
    ],
)
def test_a_bonus_of_0_that_no_target_raises_is_none(
    entropy: dict[str, Any], bonus: EntropyBonus | None
) -> None:
    assert options(entropy=entropy).entropy == bonus


def test_a_coefficient_follows_a_target_by_trls_numbers() -> None:
    def control(**entropy: Any) -> EntropyControl | None:
        return entropy_control(resolve_algorithm(AlgorithmSpec.from_object({"steps": 1, "entropy": entropy})))

    assert control(coefficient=0.1) is None
    found = control(coefficient=0.1, target=0.3)
    assert found == EntropyControl(target=0.3, delta=0.005, least=0, most=1)
    found = control(coefficient=2, target=0.3, delta=0.1, minCoefficient=1, maxCoefficient=3)
    assert found == EntropyControl(target=0.3, delta=0.1, least=1, most=3)


def test_luspo_has_one_ratio_for_each_sequence() -> None:
    assert options(lossType="luspo").ratio_level == "sequence"
    assert options(lossType="luspo", ratioLevel="token").ratio_level == "token"
    assert options(lossType="grpo").ratio_level == "token"


def test_dr_grpo_divides_by_the_longest_completion_that_is_sampled() -> None:
    algorithm = resolve_algorithm(AlgorithmSpec.from_object({"steps": 1, "lossType": "dr_grpo"}))
    assert loss_options(algorithm, max_completion_length=96).max_completion_length == 96
