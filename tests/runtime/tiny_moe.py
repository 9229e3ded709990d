"""A mixture-of-experts model as small as `builtin://tiny`."""

from pathlib import Path

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from grpo_runtime.model.save import save_policy
from grpo_runtime.model.tiny import char_tokenizer

MAX_LENGTH_TOKENS = 512


def write_tiny_moe(into: Path) -> None:
    """Write a random Qwen3-MoE with 4 experts, of which each token takes 2, that vLLM's CPU build serves."""
    tokenizer = char_tokenizer(max_length_tokens=MAX_LENGTH_TOKENS)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3MoeForCausalLM(config).float()
    save_policy(model, tokenizer=tokenizer, into=into)
