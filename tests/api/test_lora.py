"""`model.lora`: its rules, and what a run gets of it."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from grpo_api.contract.run_config import parse_run_config
from grpo_api.resolve import resolve

from .test_resolve import job


def lora_job(**lora: Any) -> Any:
    return job(model={"source": "builtin://tiny", "lora": lora})


def test_the_product_counts_twice_and_every_linear_layer_has_one_unless_they_are_named():
    run = resolve(lora_job(rank=16))
    assert run.to_object()["model"]["lora"] == {
        "rank": 16,
        "alpha": 32,
        "targets": ["all-linear"],
        "exportMerged": False,
    }
    named = resolve(lora_job(rank=16, alpha=8, targets=["q_proj", "v_proj"], exportMerged=True))
    assert named.model.lora is not None
    assert (named.model.lora.alpha, named.model.lora.targets) == (8, ("q_proj", "v_proj"))
    assert (run.exports_merged, named.exports_merged) == (False, True)
    assert parse_run_config(json.dumps(named.to_object())) == named


def test_a_job_without_an_adapter_says_nothing_of_one():
    assert "lora" not in resolve(job()).to_object()["model"]


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"rank": 0}, "greater than or equal to 1"),
        ({"rank": 2000}, "less than or equal to 1024"),
        ({"alpha": 8}, "Field required"),
        ({"rank": 8, "dropout": 0.1}, "model.lora.dropout must be 0, because with dropout"),
        ({"rank": 8, "targets": []}, "at least 1 item"),
        ({"rank": 8, "targets": ["all-linear", "q_proj"]}, "remove these, or all-linear"),
        ({"rank": 8, "targets": ["q proj"]}, "must be the last parts of a layer's name"),
    ],
)
def test_an_adapter_that_cannot_be_trained_is_refused(lora: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        lora_job(**lora)


def test_no_dropout_may_be_said():
    assert resolve(lora_job(rank=8, dropout=0, targets=["all-linear"])).model.lora is not None
