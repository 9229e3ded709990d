"""Whether a model, its tokenizer and a job go together, found out when they are loaded."""

import logging

from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.errors import UserError
from grpo_runtime.model.language_model import vocabulary_size

logger = logging.getLogger(__name__)


def require_fit(
    config: PreTrainedConfig,
    generation_config: GenerationConfig,
    tokenizer: PreTrainedTokenizerBase,
    run_config: RunConfig,
) -> None:
    """Raise UserError when the model lacks a token that ends a completion, or the padding token of its own
    configuration, and when sequences may be longer than its positions. Warns of tokens that the tokenizer has
    and the model has not: prompts with one are refused."""
    text_config, source = config.get_text_config(), run_config.model.source
    size = vocabulary_size(config)
    if unknown_padding := _unknown(getattr(text_config, "pad_token_id", None), size=size):
        raise UserError(
            f"model.source ({source}): config.json says pad_token_id {unknown_padding[0]}, and the model has "
            f"{size} tokens: correct it there, or remove it"
        )
    for file, found in (("config.json", text_config), ("generation_config.json", generation_config)):
        if unknown_ends := _unknown(getattr(found, "eos_token_id", None), size=size):
            raise UserError(
                f"model.source ({source}): {file} says eos_token_id {unknown_ends[0]}, and the model has "
                f"{size} tokens, so that no completion could end with it: correct it there"
            )
    if _unknown(tokenizer.eos_token_id, size=size):
        raise UserError(
            f"model.source ({source}): eos_token of the tokenizer is token {tokenizer.eos_token_id}, and the "
            f"model has {size} tokens, so that no completion could end: take the model's own tokenizer, or "
            "resize the model's embeddings"
        )
    if unknown := sorted(token for token in tokenizer.get_vocab().values() if token >= size):
        logger.warning(
            "model.source (%s): the tokenizer has %d tokens that the model has not, the first is %s (%d): "
            "prompts must not have them",
            *(source, len(unknown), tokenizer.convert_ids_to_tokens(unknown[0]), unknown[0]),
        )
    _require_positions(text_config, run_config)


def replace_unknown_padding(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Pad with the end of a sequence where the model lacks the tokenizer's padding token: what is padded is
    never looked at."""
    if _unknown(tokenizer.pad_token_id, size=vocabulary_size(config)):
        tokenizer.pad_token = tokenizer.eos_token


def _unknown(token_ids: int | list[int] | None, *, size: int) -> list[int]:
    """The ids that a model with `size` tokens does not have."""
    every = token_ids if isinstance(token_ids, list) else [token_ids]
    return [token for token in every if token is not None and token >= size]


CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes that vLLM's attention on CPU has kernels for. A test compares them with vLLM's."""


def require_cpu_heads(config: PreTrainedConfig) -> None:
    """Raise UserError when engines without GPUs have no attention for the model's heads."""
    text_config = config.get_text_config()
    num_heads = getattr(text_config, "num_attention_heads", None)
    if num_heads is None or getattr(text_config, "kv_lora_rank", None) is not None:
        # it has no attention, or one whose heads have several sizes
        return
    size = getattr(text_config, "head_dim", None) or text_config.hidden_size // num_heads
    if size not in CPU_HEAD_SIZES:
        raise UserError(
            f"model.source: the model's heads have head_dim {size}, for which vLLM has no attention on CPU: "
            f"take a model with one of {', '.join(map(str, CPU_HEAD_SIZES))}, or run it on GPUs"
        )


_UNSTRETCHED = {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
"""Ropes with a factor that max_position_embeddings has in it already, as in vLLM's
`_get_and_verify_max_len`."""


def _require_positions(config: PreTrainedConfig, run_config: RunConfig) -> None:
    positions = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    # the others, such as linear and dynamic, multiply the positions, which vLLM checks
    is_stretched = "factor" in rope and rope.get("rope_type") not in _UNSTRETCHED
    length = run_config.engine.max_model_len
    if positions is not None and not is_stretched and length > positions:
        raise UserError(
            f"engine.maxModelLen ({length}) is more than the {positions} positions of model.source "
            f"({run_config.model.source}): set engine.maxModelLen to {positions} or less"
        )
