"""The fields of `algorithm` about the loss: which of them go together, and what a run gets of them."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from grpo_api.contract.run_config import parse_run_config
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.spec import LossType

from .test_resolve import job


def loss_job(**algorithm: Any) -> Any:
    return job(algorithm={"steps": 5, **algorithm})


def written(**algorithm: Any) -> dict[str, Any]:
    run = resolve(loss_job(**algorithm))
    assert parse_run_config(json.dumps(run.to_object())) == run
    section: dict[str, Any] = run.to_object()["algorithm"]
    return section


def test_a_job_that_names_the_defaults_is_the_run_of_one_that_names_none():
    assert written() == written(clipHigh=0.2, lossType="dapo", ratioLevel="token", minibatches=1)
    assert (written()["clipHigh"], written()["ratioLevel"], written()["minibatches"]) == (0.2, "token", 1)
    assert written()["importanceCorrection"]["level"] == "token"
    assert "delta" not in written()


@pytest.mark.parametrize(
    ("loss", "cap"), [("cispo", 5.0), ("dapo", 0.2), ("luspo", 0.2), ("sapo", None), ("vespo", None)]
)
def test_the_upper_clip_of_a_loss_is_written_out_where_it_has_one(loss: str, cap: float | None):
    assert written(lossType=loss).get("clipHigh") == cap


def test_one_ratio_for_each_sequence_is_written_where_the_loss_wants_it():
    assert written(lossType="luspo")["ratioLevel"] == "sequence"
    assert written(lossType="luspo", ratioLevel="token")["ratioLevel"] == "token"


def test_a_penalty_is_written_with_all_its_parts():
    assert written(kl={"beta": 0.04})["kl"] == {"beta": 0.04, "estimator": "k3", "biasCorrection": True}
    assert "kl" not in written()


def test_masks_are_written_with_both_bounds():
    section = written(geometricMask={"low": 0.98}, trustRegionMask={"high": 0.3})
    assert section["geometricMask"] == {"low": 0.98, "high": 1.01}
    assert section["trustRegionMask"] == {"low": 0.2, "high": 0.3}
    assert not written().keys() & {"geometricMask", "trustRegionMask"}


def test_a_bonus_that_follows_a_target_is_written_with_all_its_parts():
    assert written(entropy={"coefficient": 0.01})["entropy"] == {"coefficient": 0.01}
    assert written(entropy={"coefficient": 0.01, "target": 0.5})["entropy"] == {
        "coefficient": 0.01,
        "target": 0.5,
        "delta": 0.005,
        "minCoefficient": 0.0,
        "maxCoefficient": 1.0,
    }
    assert "entropy" not in written()


def test_a_reference_policy_cannot_be_spread_by_zero3_unless_it_is_the_model_without_its_adapter():
    algorithm, trainer = {"steps": 5, "kl": {"beta": 0.1}}, {"strategy": "ZeRO3"}
    with pytest.raises(ValidationError, match="which ZeRO3 does not spread"):
        job(algorithm=algorithm, trainer=trainer)
    model = {"source": "builtin://tiny", "lora": {"rank": 4}}
    assert resolve(job(algorithm=algorithm, trainer=trainer, model=model))
    assert resolve(job(algorithm={"steps": 5, "kl": {"beta": 0}}, trainer=trainer))


def test_a_reference_that_follows_is_written_with_its_share_and_is_not_below_an_adapter():
    kl = {"beta": 0.1, "refSync": {"everySteps": 64}}
    assert written(kl=kl)["kl"]["refSync"] == {"everySteps": 64, "mix": 0.6}
    model = {"source": "builtin://tiny", "lora": {"rank": 4}}
    with pytest.raises(ValidationError, match="remove refSync, or remove lora"):
        job(algorithm={"steps": 5, "kl": kl}, model=model)


@pytest.mark.parametrize("loss", LossType)
def test_every_loss_may_be_asked_for_alone(loss: LossType):
    assert written(lossType=loss.value)["lossType"] == loss.value


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ({"lossType": "cispo", "clipHigh": 0.2}, "it must be at least 1: remove it, which means 5"),
        ({"lossType": "cispo", "delta": 8}, "need an algorithm.lossType that clips its ratio"),
        ({"lossType": "sapo", "dualClip": 3}, "need an algorithm.lossType that clips its ratio"),
        ({"delta": 1.2}, "delta must be above 1 \\+ clipHigh"),
        ({"delta": 1.3, "clipHigh": 0.4}, "raise delta or lower clipHigh"),
        ({"delta": 1}, "greater than 1"),
        ({"sapoTemperaturePos": 2}, "need algorithm.lossType sapo"),
        ({"lossType": "sapo", "vespoKPos": 2}, "need algorithm.lossType vespo"),
        ({"lossType": "vespo", "ratioLevel": "sequence"}, "ratioLevel must be token"),
        (
            {"lossType": "vespo", "importanceCorrection": {"level": "sequence"}},
            "importanceCorrection.level must be token",
        ),
        (
            {"aggregation": "normalize_then_sum", "scaleRewards": "none"},
            "set aggregation to sum_then_normalize",
        ),
        ({"aggregation": "normalize_then_sum", "baseline": "leave_one_out"}, "remove algorithm.scaleRewards"),
        ({"promptsPerStep": 6, "minibatches": 4}, r"minibatches \(4\) must divide .*promptsPerStep \(6\)"),
        (
            {"entropy": {"coefficient": 0.1, "minCoefficient": 0}},
            "algorithm.entropy.target, which is not set",
        ),
        ({"entropy": {"coefficient": 0.1, "target": 1, "maxCoefficient": 0.05}}, "change one of them"),
        (
            {"kl": {"beta": 0, "refSync": {"everySteps": 5}}},
            "with beta 0 there is none: raise algorithm.kl.beta",
        ),
        ({"kl": {"beta": 1, "refSync": {"everySteps": 5, "mix": 0}}}, "greater than 0"),
        ({"topEntropyQuantile": 0}, "greater than 0"),
        ({"topEntropyQuantile": 1.1}, "less than or equal to 1"),
        ({"offPolicyThreshold": 0}, "greater than 0"),
        ({"geometricMask": {"low": 1.1}}, "less than or equal to 1"),
        ({"geometricMask": {"high": 0.9}}, "greater than or equal to 1"),
        ({"trustRegionMask": {"low": 0}}, "greater than 0"),
        ({"trustRegionMask": {}, "ratioLevel": "sequence"}, "set algorithm.ratioLevel to token, or remove"),
        ({"trustRegionMask": {}, "lossType": "luspo"}, "set algorithm.ratioLevel to token, or remove"),
    ],
)
def test_what_does_not_go_together_is_refused(algorithm: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        loss_job(**algorithm)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"lossType": "grpo", "ratioLevel": "sequence", "clipLow": 0.0003, "clipHigh": 0.0004},
        {"delta": 4, "dualClip": 3, "clipHigh": 0.28},
        {"lossType": "vespo", "importanceCorrection": {"mode": "none", "level": "sequence"}},
        {"aggregation": "normalize_then_sum"},
        {"baseline": "leave_one_out", "scaleRewards": "none"},
        {"promptsPerStep": 6, "minibatches": 3},
        {"entropy": {"coefficient": 2}},
        {"entropy": {"coefficient": 2, "target": 1, "maxCoefficient": 3}},
        {"geometricMask": {}, "ratioLevel": "sequence"},
        {"trustRegionMask": {"high": 0.1}, "lossType": "luspo", "ratioLevel": "token"},
        {"maskTruncated": True, "topEntropyQuantile": 0.2, "offPolicyThreshold": 0.1},
    ],
)
def test_what_goes_together_is_taken(algorithm: dict[str, Any]):
    assert resolve(loss_job(**algorithm))
