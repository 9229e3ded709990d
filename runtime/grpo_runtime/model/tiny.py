"""`builtin://tiny`: a random Qwen2 of 0.1 M parameters that learns the built-in tasks in seconds on a CPU.

Its bytes are the same on every machine. torch's own initialisers are not used, because they round differently
on different CPUs. The weights are PCG64's raw integers, turned into float32 by operations that are exact or
correctly rounded everywhere.
"""

import hashlib
import math
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from grpo_runtime.model.save import save_policy

MAX_LENGTH_TOKENS = 512
_INIT_STD = 0.02
"""Small enough to start near the uniform distribution; with 0.05 the policy stops improving half way through
the reverse task."""
_SEED = b"grpo tiny 1"
PAD, EOS, UNKNOWN = "<|pad|>", "<|eos|>", "<|unk|>"
CHARACTERS = "\n" + "".join(chr(code) for code in range(0x20, 0x7F))
# How the vocabulary of byte-level BPE spells these two bytes; it has all other characters as they are. Every
# Qwen2 tokenizer is byte-level BPE, and transformers loads ours as one too.
_BYTE_LEVEL = {" ": "Ġ", "\n": "Ċ"}


def write_tiny_model(into: Path) -> None:
    """Write the tiny policy to the directory `into` as a Hugging Face model that vLLM's CPU build serves.

    head_dim is 32, because vLLM's CPU attention supports 32 and 64. The embeddings are not tied, because a
    tied head keeps its old weights when vLLM's CPU build reloads weights.
    """
    tokenizer = char_tokenizer(max_length_tokens=MAX_LENGTH_TOKENS)
    model = Qwen2ForCausalLM(_config(tokenizer)).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_initial_value(name, shape=tuple(parameter.shape)))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    save_policy(model, tokenizer=tokenizer, into=into)


def char_tokenizer(*, max_length_tokens: int) -> PreTrainedTokenizerFast:
    """A tokenizer of 99 tokens: padding, end of sequence, unknown, newline and printable ASCII.

    It adds no special token by itself: a prompt is exactly its characters.
    """
    spelled = [_BYTE_LEVEL.get(character, character) for character in CHARACTERS]
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, UNKNOWN, *spelled])}
    # without merges every character stays a token
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=max_length_tokens,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def _config(tokenizer: PreTrainedTokenizerBase) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LENGTH_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _initial_value(name: str, *, shape: tuple[int, ...]) -> torch.Tensor:
    """Norms are one, biases zero, matrices uniform with standard deviation 0.02, seeded by their name."""
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith("bias"):
        return torch.zeros(shape)
    seed = int.from_bytes(hashlib.sha256(_SEED + name.encode()).digest()[:8], "little")
    raw = np.random.PCG64(seed).random_raw(math.prod(shape))
    # 24 random bits around zero are exact in float32, so only the one multiplication rounds
    centred = (raw >> np.uint64(40)).astype(np.int64) - (1 << 23)
    bound = np.float32(_INIT_STD * math.sqrt(3) / (1 << 23))
    return torch.from_numpy(centred.astype(np.float32) * bound).reshape(shape)
