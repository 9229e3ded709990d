"""Models of a given shape with random weights."""

from typing import Any, Protocol

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM


class Sizes(Protocol):
    """Of the layers of a Qwen2."""

    @property
    def hidden(self) -> int: ...

    @property
    def intermediate(self) -> int: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def num_heads(self) -> int: ...


def random_model(
    sizes: Sizes, *, vocabulary: int, num_kv_heads: int, is_tied: bool = False, seed: int = 1, **others: Any
) -> Qwen2ForCausalLM:
    """One in float32 on the CPU. `others` go to its configuration as they are; torch's random numbers
    continue from `seed` afterwards."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=num_kv_heads,
        tie_word_embeddings=is_tied,
        **others,
    )
    return Qwen2ForCausalLM(config).float()
