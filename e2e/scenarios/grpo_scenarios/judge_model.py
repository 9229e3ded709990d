"""A reward model for the tiny policy's language, as a folder on a claim."""

from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, Qwen2Config

from grpo_runtime.model.tiny import char_tokenizer


def write_judge(folder: Path) -> None:
    """Write a random sequence classifier with one label, readable for everybody as pods' users are others."""
    tokenizer = char_tokenizer(max_length_tokens=512)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)
