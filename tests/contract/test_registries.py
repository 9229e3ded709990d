"""What a spec can ask for is what the runtime's registries offer: neither side has a name more."""

import dataclasses
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic.alias_generators import to_snake

from grpo_api.contract.exit_codes import RESERVED, ExitCode
from grpo_api.resolve import resolve_algorithm
from grpo_api.source import BUILTIN_TASKS
from grpo_api.v1alpha1.spec import (
    AlgorithmSpec,
    BuiltinReward,
    GeometricMaskSpec,
    ImportanceCorrectionMode,
    ImportanceCorrectionSpec,
    KLEstimator,
    LossType,
    RewardSpec,
    ScaleRewards,
    TrustRegionMaskSpec,
)
from grpo_runtime.algorithm.geometric_mask import GeometricMask
from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.registry import (
    ADVANTAGE_SCALINGS,
    CORRECTION_MODES,
    KL_ESTIMATORS,
    LOSSES,
    NOT_EXPOSED,
    exposed_names,
    exposed_options,
)
from grpo_runtime.algorithm.trust_region_mask import TrustRegionMask
from grpo_runtime.algorithm.types import AdvantageOptions, LossOptions
from grpo_runtime.data.tasks import TASKS
from grpo_runtime.rewards.builtin import BUILTIN_REWARDS
from grpo_runtime.rewards.types import BuiltinOptions
from grpo_runtime.trainer.algorithm_options import loss_options

from .reference_tables import PAGE

SECTIONS = {
    "importance_correction": ImportanceCorrection,
    "geometric_mask": GeometricMask,
    "trust_region_mask": TrustRegionMask,
}
"""Options of the loss that are a section of the spec, with the same names in it."""
OPTION_FIELDS = {"pattern": "x", "overlong_tokens": 5}
"""Fields of a reward that are for built-in rewards alone, each with a value."""


def test_a_spec_can_ask_for_every_exposed_loss_and_for_no_other() -> None:
    assert exposed_names(LOSSES) == {value.value for value in LossType}


def test_a_spec_can_ask_for_every_exposed_correction_or_for_none() -> None:
    modes = {value.value for value in ImportanceCorrectionMode}
    assert exposed_names(CORRECTION_MODES) == modes - {"none"}


def test_a_spec_can_ask_for_every_exposed_scaling_of_advantages() -> None:
    assert exposed_names(ADVANTAGE_SCALINGS) == {value.value for value in ScaleRewards}


def test_a_spec_can_ask_for_every_exposed_kl_estimator() -> None:
    assert exposed_names(KL_ESTIMATORS) == {value.value for value in KLEstimator}


@pytest.mark.parametrize("kind", NOT_EXPOSED, ids=lambda kind: kind.__name__)
def test_what_is_listed_as_not_exposed_exists(kind: type[Any]) -> None:
    assert NOT_EXPOSED[kind] <= {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize(
    "changes",
    [
        {"lossType": "grpo", "ratioLevel": "sequence", "clipLow": 0.1, "clipHigh": 0.3, "delta": 4.0},
        {"dualClip": 3.0, "topEntropyQuantile": 0.2, "offPolicyThreshold": 0.1, "numIterations": 2},
        {"geometricMask": {"low": 0.9, "high": 1.2}, "trustRegionMask": {"low": 0.1, "high": 0.3}},
        {"importanceCorrection": {"mode": "mask", "level": "sequence", "floor": 0.5, "cap": 4.0}},
        {"lossType": "sapo", "sapoTemperaturePos": 2.0, "sapoTemperatureNeg": 3.0},
        {
            "lossType": "vespo",
            "vespoKPos": 1.0,
            "vespoLambdaPos": 1.5,
            "vespoKNeg": 2.5,
            "vespoLambdaNeg": 1.0,
        },
    ],
)
def test_an_option_of_the_loss_is_the_field_of_its_name(changes: dict[str, Any]) -> None:
    options = loss_options(resolve_algorithm(AlgorithmSpec.from_object({"steps": 1, **changes})))
    for name, value in changes.items():
        option = to_snake(name)
        if option in SECTIONS:
            assert getattr(options, option) == SECTIONS[option](**value)
        elif option in exposed_options(LossOptions):
            assert getattr(options, option) == value


def test_what_a_job_does_not_set_is_as_the_loss_has_it() -> None:
    correction = ImportanceCorrection(mode="truncate", floor=0.0, cap=2.0)
    assert loss_options(resolve_algorithm(AlgorithmSpec(steps=1))) == LossOptions(
        importance_correction=correction
    )


def test_every_option_of_the_loss_and_of_the_advantages_has_a_field() -> None:
    assert set(exposed_options(LossOptions)) <= set(AlgorithmSpec.model_fields)
    assert set(exposed_options(AdvantageOptions)) - {"weights"} <= set(AlgorithmSpec.model_fields)
    assert set(exposed_options(ImportanceCorrection)) == set(ImportanceCorrectionSpec.model_fields)
    assert set(exposed_options(GeometricMask)) == set(GeometricMaskSpec.model_fields)
    assert set(exposed_options(TrustRegionMask)) == set(TrustRegionMaskSpec.model_fields)


def test_a_mask_that_is_named_alone_has_the_bounds_that_the_loss_has() -> None:
    spec = AlgorithmSpec.from_object({"steps": 1, "geometricMask": {}, "trustRegionMask": {}})
    options = loss_options(resolve_algorithm(spec))
    assert (options.geometric_mask, options.trust_region_mask) == (GeometricMask(), TrustRegionMask())


def test_a_loss_option_reaches_the_loss_by_its_field_and_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NOT_EXPOSED, LossOptions, NOT_EXPOSED[LossOptions] | {"delta"})
    algorithm = resolve_algorithm(AlgorithmSpec(steps=1, delta=4.0))
    assert loss_options(algorithm).delta is None
    monkeypatch.undo()
    assert loss_options(algorithm).delta == 4.0


def test_a_spec_can_ask_for_every_built_in_reward() -> None:
    assert set(BUILTIN_REWARDS) == {value.value for value in BuiltinReward}


@pytest.mark.parametrize("name", BUILTIN_REWARDS)
def test_a_built_in_reward_needs_options_that_there_are(name: str) -> None:
    assert set(BUILTIN_REWARDS[name].options) <= {field.name for field in dataclasses.fields(BuiltinOptions)}


@pytest.mark.parametrize("field", OPTION_FIELDS)
@pytest.mark.parametrize("name", BUILTIN_REWARDS)
def test_a_spec_has_exactly_the_options_that_its_built_in_reward_needs(name: str, field: str) -> None:
    needed = {
        option: OPTION_FIELDS[option] for option in BUILTIN_REWARDS[name].options if option in OPTION_FIELDS
    }
    assert RewardSpec(name="r", builtin=BuiltinReward(name), **needed)
    other = {option: value for option, value in needed.items() if option != field}
    if field not in needed:
        other[field] = OPTION_FIELDS[field]
    with pytest.raises(ValidationError, match="belongs to the builtin"):
        RewardSpec(name="r", builtin=BuiltinReward(name), **other)


def test_a_spec_can_name_every_built_in_task() -> None:
    assert set(TASKS) == set(BUILTIN_TASKS)


def test_the_reference_says_which_exit_codes_are_reserved() -> None:
    assert {ExitCode.DATA_EXHAUSTED} == RESERVED
    assert all(f"{code.value} is reserved" in PAGE.read_text() for code in RESERVED)
