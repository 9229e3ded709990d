"""From the numbers of a spec to those of the loss."""

from typing import Any

import pytest

from grpo_api.v1alpha1.spec import AlgorithmSpec
from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.kl import KLPenalty
from grpo_runtime.algorithm.types import LossOptions
from grpo_runtime.trainer.loss_options import loss_options


def options(**changes: Any) -> LossOptions:
    return loss_options(AlgorithmSpec.from_object({"steps": 1, **changes}))


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


def test_luspo_has_one_ratio_for_each_sequence() -> None:
    assert options(lossType="luspo").ratio_level == "sequence"
    assert options(lossType="luspo", ratioLevel="token").ratio_level == "token"
    assert options(lossType="grpo").ratio_level == "token"


def test_dr_grpo_divides_by_the_longest_completion_that_is_sampled() -> None:
    algorithm = AlgorithmSpec.from_object({"steps": 1, "lossType": "dr_grpo"})
    assert loss_options(algorithm, max_completion_length=96).max_completion_length == 96
