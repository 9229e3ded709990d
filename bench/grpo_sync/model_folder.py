"""A model of a given size as a Hugging Face folder that vLLM serves."""

from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from grpo_bench.random_model import random_model
from grpo_runtime.model.save import save_policy
from grpo_runtime.model.tiny import char_tokenizer
from grpo_sync.model_shape import ModelShape

_MAX_LENGTH_TOKENS = 512


def write_model(into: Path, shape: ModelShape) -> None:
    """Write a random policy of that shape, in float32."""
    disable_progress_bar()
    tokenizer = char_tokenizer(max_length_tokens=_MAX_LENGTH_TOKENS)
    model = random_model(
        shape,
        vocabulary=shape.vocabulary,
        num_kv_heads=shape.num_kv_heads,
        max_position_embeddings=_MAX_LENGTH_TOKENS,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    save_policy(model, tokenizer=tokenizer, into=into)
