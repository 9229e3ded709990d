"""Writes the small model of a job, or says what saved models are to the last bit.

    model_files.py write FOLDER
    model_files.py digests BASE FOLDER ...    a line for each, as engines have it in bfloat16

In a process of its own, so that a test that waits for a job has no torch of its own.
"""

import sys
from pathlib import Path

import torch
from grpo_nullgpu.digest import digest_of_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from grpo_runtime.model.save import save_policy
from grpo_runtime.model.tiny import char_tokenizer

MOST_TOKENS = 512
_CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_model(folder: Path) -> None:
    """A Qwen3 of two layers, with grouped heads and tied embeddings as Qwen3-0.6B."""
    folder.mkdir(parents=True)
    tokenizer = char_tokenizer(max_length_tokens=MOST_TOKENS)
    tokenizer.chat_template = _CHAT
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MOST_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        **special,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).float()
    model.generation_config.update(**special)
    save_policy(model, tokenizer=tokenizer, into=folder)


def main(what: str, *folders: str) -> None:
    """Do one of the two."""
    if what == "write":
        write_model(*map(Path, folders))
        return
    base, *saved = map(Path, folders)
    for folder in saved:
        print(digest_of_model(folder, base=base, dtype=torch.bfloat16))


if __name__ == "__main__":
    main(*sys.argv[1:])
