"""A model, a tokenizer and a job that do not go together are told when they are loaded."""

import logging
from typing import Any

import pytest
from pod_builder import run_config
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase, Qwen2Config

from grpo_runtime.errors import UserError
from grpo_runtime.model.fit import replace_unknown_padding, require_cpu_heads, require_fit
from grpo_runtime.model.tiny import char_tokenizer

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


def fit(
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    ends: int | list[int] | None = None,
) -> None:
    tokenizer = tokenizer or char_tokenizer(max_length_tokens=64)
    require_fit(config, GenerationConfig(eos_token_id=ends), tokenizer, run_config())


def test_a_tokenizer_with_as_many_tokens_as_the_model_fits(caplog: pytest.LogCaptureFixture) -> None:
    fit(model(), ends=[1, 2])
    assert not caplog.records


def test_a_padding_token_that_the_model_has_not_is_replaced_by_the_end_of_a_sequence() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    assert tokenizer.pad_token_id == TOKENIZER_SIZE
    fit(model(), tokenizer)
    assert tokenizer.pad_token_id == TOKENIZER_SIZE
    replace_unknown_padding(tokenizer, model())
    assert tokenizer.pad_token_id == tokenizer.eos_token_id


def test_a_padding_token_of_the_configuration_that_the_model_has_not_is_refused() -> None:
    with pytest.raises(
        UserError, match=rf"config\.json says pad_token_id {TOKENIZER_SIZE}, .*: correct it there"
    ):
        fit(model(pad_token_id=TOKENIZER_SIZE))


def test_an_end_that_the_model_has_not_is_refused() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.add_special_tokens({"eos_token": "[END]"})
    with pytest.raises(UserError, match=rf"eos_token .* is token {TOKENIZER_SIZE}, .* resize the model"):
        fit(model(), tokenizer)


def test_a_further_end_that_the_model_has_not_is_refused_by_its_file() -> None:
    sentence = rf"^model\.source .*: {{}} says eos_token_id {TOKENIZER_SIZE}, .*: correct it there"
    with pytest.raises(UserError, match=sentence.format(r"config\.json")):
        fit(model(eos_token_id=TOKENIZER_SIZE))
    with pytest.raises(UserError, match=sentence.format(r"generation_config\.json")):
        fit(model(), ends=[1, TOKENIZER_SIZE])


def test_a_tokenizer_without_padding_fits() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.pad_token = None
    fit(model(), tokenizer)


def test_tokens_that_the_model_has_not_are_told(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.add_tokens(["<tool>", "<more>"])
    with caplog.at_level(logging.WARNING):
        fit(model(), tokenizer)
    assert f"2 tokens that the model has not, the first is <tool> ({TOKENIZER_SIZE})" in caplog.text


def test_sequences_longer_than_the_positions_of_the_model_are_refused_by_field_and_number() -> None:
    length = run_config().engine.max_model_len
    fit(model(positions=length))
    with pytest.raises(
        UserError, match=rf"^engine\.maxModelLen \({length}\) is more than the {length - 1} posi"
    ):
        fit(model(positions=length - 1))


def with_rope(rope_type: str) -> PreTrainedConfig:
    """A model with half as many positions as sequences may be long."""
    rope = {"rope_type": rope_type, "factor": 4.0, "rope_theta": 1e4}
    config = model(positions=run_config().engine.max_model_len // 2)
    config.rope_parameters = rope
    return config


@pytest.mark.parametrize("rope_type", ["linear", "dynamic"])
def test_positions_that_a_rope_stretches_are_left_to_vllm(rope_type: str) -> None:
    fit(with_rope(rope_type))


@pytest.mark.parametrize("rope_type", ["llama3", "longrope", "yarn"])
def test_positions_that_are_stretched_in_the_configuration_already_are_looked_at(rope_type: str) -> None:
    with pytest.raises(UserError, match=r"^engine\.maxModelLen "):
        fit(with_rope(rope_type))


def test_heads_that_attention_on_cpu_has_no_kernel_for_are_refused_by_their_size() -> None:
    with pytest.raises(
        UserError, match=r"^model\.source: .* head_dim 8, .*: take a model with one of 32, 64,"
    ):
        require_cpu_heads(model())
    require_cpu_heads(model(head_dim=64))
    require_cpu_heads(model(kv_lora_rank=4))
