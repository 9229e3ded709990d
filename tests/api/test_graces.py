"""How long a trainer pod may take to stop, from what is known of its saves."""

from typing import Any

import pytest

from grpo_api.contract.graces import (
    MAX_TRAINER_GRACE_SECONDS,
    TRAINER_GRACE_SECONDS,
    estimated_save_seconds,
    num_parameters_named,
    ranks_grace_seconds,
    trainer_grace_seconds,
)
from grpo_api.v1alpha1.spec import GRPOJobSpec


def spec(model: dict[str, Any], **changes: Any) -> GRPOJobSpec:
    """A job with a claim; `changes` replace top-level sections, in YAML's names."""
    short = {
        "model": model,
        "dataset": {"source": "builtin://copy"},
        "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
        "algorithm": {"steps": 10},
        "checkpoint": {"claimName": "runs"},
    }
    return GRPOJobSpec.from_object(short | changes)


def first_grace(model: dict[str, Any], **changes: Any) -> int:
    estimated = estimated_save_seconds(spec(model, **changes))
    return trainer_grace_seconds(None, estimated_seconds=estimated)


@pytest.mark.parametrize(
    ("source", "parameters"),
    [
        ("hf://Qwen/Qwen3-0.6B", 600_000_000),
        ("hf://meta-llama/Llama-3.3-70B-Instruct", 70_000_000_000),
        ("hf://HuggingFaceTB/SmolLM2-135M", 135_000_000),
        ("hf://Qwen/Qwen3-30B-A3B", 30_000_000_000),
        ("hf://mistralai/Mixtral-8x7B-v0.1", 56_000_000_000),
        ("hf://google/gemma-3-27b-it", 27_000_000_000),
        ("hf://Qwen/Qwen2.5-7B-Instruct-1M", 7_000_000_000),
        ("hf://someone/gemma-2-9b-it-4bit", 9_000_000_000),
        ("pvc://models/llama_8b/checkpoint-3", 8_000_000_000),
        ("file:///models/Yi-34B", 34_000_000_000),
        ("hf://openai-community/gpt2", None),
        ("hf://microsoft/Phi-3-mini-4k-instruct", None),
        ("hf://labs-7B/secret", None),
        ("pvc://models-7b/mine", None),
        ("builtin://tiny", None),
    ],
)
def test_the_size_of_a_model_is_the_one_that_its_name_has(source: str, parameters: int | None):
    assert num_parameters_named(source) == parameters


def test_the_first_attempt_has_time_for_two_saves_of_a_model_of_this_size():
    # 12 bytes for each parameter at 200 MB/s: 0.6B is 36 s, 7B is 420 s
    assert first_grace({"source": "hf://Qwen/Qwen3-0.6B"}) == 72
    assert first_grace({"source": "hf://Qwen/Qwen2.5-7B"}) == 840
    assert first_grace({"source": "hf://meta-llama/Llama-3.3-70B"}) == MAX_TRAINER_GRACE_SECONDS


def test_a_small_model_and_one_without_a_size_have_the_usual_time():
    assert first_grace({"source": "hf://HuggingFaceTB/SmolLM2-135M"}) == TRAINER_GRACE_SECONDS
    assert first_grace({"source": "hf://openai-community/gpt2"}) == TRAINER_GRACE_SECONDS


def test_what_saves_nothing_or_only_an_adapter_has_the_usual_time():
    large = {"source": "hf://Qwen/Qwen2.5-7B"}
    assert first_grace(large, checkpoint={}) == TRAINER_GRACE_SECONDS
    assert first_grace(large | {"lora": {"rank": 16}}) == TRAINER_GRACE_SECONDS


def test_trainer_pods_that_share_the_claim_share_the_time():
    large, nodes = {"source": "hf://Qwen/Qwen2.5-7B"}, {"numNodes": 4}
    shared = {"claimName": "runs", "shared": True}
    assert first_grace(large, trainer=nodes) == 840
    assert first_grace(large, trainer=nodes, checkpoint=shared) == 210


def test_a_reference_policy_that_follows_is_saved_too():
    follows = {"steps": 10, "kl": {"beta": 0.05, "refSync": {"everySteps": 64, "mix": 0.5}}}
    assert first_grace({"source": "hf://Qwen/Qwen2.5-7B"}, algorithm=follows) == 1120


def test_a_save_that_was_measured_counts_in_place_of_the_estimate():
    assert trainer_grace_seconds(50, estimated_seconds=420) == 150
    assert trainer_grace_seconds(500, estimated_seconds=36) == 1500
    assert trainer_grace_seconds(5000) == MAX_TRAINER_GRACE_SECONDS


def test_what_a_user_asks_for_wins_over_all():
    assert trainer_grace_seconds(500, estimated_seconds=420, asked=30) == 30
    assert trainer_grace_seconds(None, asked=7200) == 7200


def test_the_ranks_have_all_but_ten_seconds():
    assert [ranks_grace_seconds(grace) for grace in (840, 60, 30)] == [830, 50, 20]
