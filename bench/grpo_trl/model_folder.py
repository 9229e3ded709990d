"""The model of a case as a Hugging Face folder that both sides read."""

from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from grpo_bench.random_model import random_model
from grpo_runtime.model.save import save_policy
from grpo_runtime.model.tiny import char_tokenizer
from grpo_trl.cases import Case

_MAX_LENGTH_TOKENS = 512
_NEVER_SAID = "<|never|>"


def write_model(case: Case, into: Path) -> int:
    """Write a random policy, in float32, and return its number of parameters.

    Its end-of-sequence token comes right after its vocabulary, so that it cannot be sampled: every completion
    is as long as it may be.
    """
    disable_progress_bar()
    tokenizer = char_tokenizer(max_length_tokens=_MAX_LENGTH_TOKENS)
    vocab_size = len(tokenizer)
    tokenizer.add_special_tokens({"eos_token": _NEVER_SAID})
    assert tokenizer.eos_token_id == vocab_size
    model = random_model(
        case,
        vocabulary=vocab_size,
        num_kv_heads=case.num_heads,
        max_position_embeddings=_MAX_LENGTH_TOKENS,
        bos_token_id=None,
        # transformers wants None or a token of the vocabulary; both sides ask the tokenizer
        eos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    save_policy(model, tokenizer=tokenizer, into=into)
    return model.num_parameters()
