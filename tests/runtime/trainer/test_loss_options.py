"""From the numbers of a spec to those of the loss."""

from typing import Any

import pytest

from grpo_api.v1alpha1.spec import AlgorithmSpec
from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.types import LossOptions
from grpo_runtime.trainer.learner import loss_options


def options(**changes: Any) -> LossOptions:
    return loss_options(AlgorithmSpec.from_object({"steps": 1, **changes}))


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
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
