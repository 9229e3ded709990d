"""A model of a given size as a Hugging Face folder that vLLM serves."""

from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from grpo_runtime.model.char_tokenizer import char_tokenizer
from grpo_runtime.model.save import save_policy
from grpo_sync.model_shape import ModelShape

_MAX_LENGTH_TOKENS = 512


def write_model(into: Path, shape: ModelShape) -> None:
    """Write a random policy of that shape, in float32."""
    disable_progress_bar()
    torch.manual_seed(1)
    tokenizer = char_tokenizer(max_length_tokens=_MAX_LENGTH_TOKENS)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=_MAX_LENGTH_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    save_policy(Qwen2ForCausalLM(config).float(), tokenizer=tokenizer, into=into)
