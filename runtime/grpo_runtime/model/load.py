"""A policy and its tokenizer from a Hugging Face directory, without network and without foreign code."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.errors import UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_policy(folder: Path, *, dtype: str) -> PreTrainedModel:
    """The causal language model in `folder` with its weights as `dtype` (a key of DTYPES), in training mode.

    Reads safetensors only and runs no code from the directory. Raises UserError when the directory does not
    hold such a model.
    """
    if dtype not in DTYPES:
        raise UserError(f"model.dtype ({dtype}) must be one of {', '.join(DTYPES)}")
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            output_loading_info=True,
            dtype=DTYPES[dtype],
            attn_implementation="sdpa",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"the model in {folder} cannot be loaded: {error}") from error
    # transformers fills what the file lacks with random numbers and only warns
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"the model in {folder} lacks {len(missing)} of its weights, the first is {missing[0]}"
        )
    _make_savable(model)
    return model.train()


def _make_savable(model: PreTrainedModel) -> None:
    """Many a model says how to sample without saying that it samples: transformers loads such a generation
    config with a warning and refuses to save it."""
    config = model.generation_config
    try:
        config.validate(strict=True)
    except ValueError:
        config.do_sample = True


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in `folder`, with a padding token (the end of sequence, where the model names none).

    Raises UserError when there is no tokenizer or it has no end-of-sequence token: a completion must be able
    to end.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(f"the tokenizer in {folder} cannot be loaded: {error}") from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer in {folder} has no eos_token: set it in tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
