"""A model, a tokenizer and a job that do not go together are told when they are loaded."""

import logging
from typing import Any

import pytest
from pod_builder import run_config
from transformers import PreTrainedConfig, Qwen2Config

from grpo_runtime.errors import UserError
from grpo_runtime.model.char_tokenizer import char_tokenizer
from grpo_runtime.model.fit import require_fit

TOKENIZER_SIZE = len(char_tokenizer(max_length_tokens=64))


def model(*, vocab_size: int = TOKENIZER_SIZE, positions: int = 256, **options: Any) -> PreTrainedConfig:
    return Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=positions,
        **options,
    )


def test_a_tokenizer_with_as_many_tokens_as_the_model_fits(caplog: pytest.LogCaptureFixture) -> None:
    require_fit(model(), char_tokenizer(max_length_tokens=64), run_config())
    assert not caplog.records


def test_a_padding_token_that_the_model_has_not_is_replaced_by_the_end_of_a_sequence() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    assert tokenizer.pad_token_id == TOKENIZER_SIZE
    require_fit(model(), tokenizer, run_config())
    assert tokenizer.pad_token_id == tokenizer.eos_token_id


def test_a_padding_token_of_the_configuration_that_the_model_has_not_is_refused() -> None:
    with pytest.raises(
        UserError, match=rf"config\.json says pad_token_id {TOKENIZER_SIZE}, .*: correct it there"
    ):
        require_fit(model(pad_token_id=TOKENIZER_SIZE), char_tokenizer(max_length_tokens=64), run_config())


def test_an_end_that_the_model_has_not_is_refused() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.add_special_tokens({"eos_token": "[END]"})
    with pytest.raises(UserError, match=rf"eos_token .* is token {TOKENIZER_SIZE}, .* resize the model"):
        require_fit(model(), tokenizer, run_config())


def test_tokens_that_the_model_has_not_are_told(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.add_tokens(["<tool>", "<more>"])
    with caplog.at_level(logging.WARNING):
        require_fit(model(), tokenizer, run_config())
    assert f"2 tokens that the model has not, the first is <tool> ({TOKENIZER_SIZE})" in caplog.text


def test_sequences_longer_than_the_positions_of_the_model_are_refused_by_field_and_number() -> None:
    length = run_config().engine.max_model_len
    tokenizer = char_tokenizer(max_length_tokens=64)
    require_fit(model(positions=length), tokenizer, run_config())
    with pytest.raises(
        UserError, match=rf"^engine\.maxModelLen \({length}\) is more than the {length - 1} posi"
    ):
        require_fit(model(positions=length - 1), tokenizer, run_config())


def test_positions_that_a_rope_stretches_are_left_to_vllm() -> None:
    length = run_config().engine.max_model_len
    stretched = {
        "rope_type": "yarn",
        "factor": 4.0,
        "rope_theta": 1e4,
        "original_max_position_embeddings": 64,
    }
    require_fit(
        model(positions=length // 2, rope_parameters=stretched),
        char_tokenizer(max_length_tokens=64),
        run_config(),
    )
