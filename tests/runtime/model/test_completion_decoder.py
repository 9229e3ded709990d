"""The text of completions, to the last character."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from grpo_runtime.model.completion_decoder import CompletionDecoder

SPECIAL = ["<|pad|>", "<|end|>", "<|turn|>", "<think>", "</think>"]


def tokenizer(*, cleans_up: bool = False) -> PreTrainedTokenizerFast:
    """Bytes are its tokens, behind the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        clean_up_tokenization_spaces=cleans_up,
    )


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("<think>a</think>b<|end|>", "<think>a</think>b"),
        ("a</think>", "a</think>"),
        ("a<|turn|>", "a<|turn|>"),
        ("a<|end|>b<|turn|>c<|end|>", "a<|end|>b<|turn|>c"),
        ("a<|end|><|pad|>", "a"),
        ("<|end|>", ""),
        ("", ""),
    ],
)
def test_special_tokens_are_text_but_for_those_that_end_a_completion(written: str, text: str) -> None:
    made = tokenizer()
    assert CompletionDecoder.of(made).text(tuple(made(written)["input_ids"])) == text


@pytest.mark.parametrize("ends", [2, [1, 2]])
def test_a_token_that_ends_turns_by_the_generation_config_is_an_end(ends: int | list[int]) -> None:
    made = tokenizer()
    decoder = CompletionDecoder.of(made, GenerationConfig(eos_token_id=ends))
    assert decoder.text(tuple(made("a<|turn|>")["input_ids"])) == "a"
    assert decoder.text(tuple(made("a<|end|>")["input_ids"])) == "a"


def test_spaces_before_punctuation_stay_as_they_were_written() -> None:
    made = tokenizer(cleans_up=True)
    assert CompletionDecoder.of(made).text(tuple(made("a , b .")["input_ids"])) == "a , b ."


def test_the_ending_of_a_prompt_has_its_special_tokens() -> None:
    made = tokenizer()
    prompt = tuple(made("x" * 100 + "<|turn|><think>")["input_ids"])
    assert CompletionDecoder.of(made).ending(prompt).endswith("xx<|turn|><think>")
