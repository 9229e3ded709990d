"""Whether a model, its tokenizer and a job go together, found out when they are loaded."""

import logging

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.errors import UserError
from grpo_runtime.model.language_model import vocabulary_size

logger = logging.getLogger(__name__)


def require_fit(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, run_config: RunConfig) -> None:
    """Raise UserError when no completion could end, when sequences may be longer than the model's positions,
    or when the configuration has a padding token that the model has not. Warns of tokens that the tokenizer
    has and the model has not: prompts with one are refused.

    A padding token of the tokenizer alone is replaced by the end of a sequence, since what is padded is never
    looked at.
    """
    size, source = vocabulary_size(config), run_config.model.source
    padding = getattr(config.get_text_config(), "pad_token_id", None)
    if padding is not None and padding >= size:
        raise UserError(
            f"model.source ({source}): config.json says pad_token_id {padding}, and the model has {size} "
            "tokens: correct it there, or remove it"
        )
    if tokenizer.eos_token_id >= size:
        raise UserError(
            f"model.source ({source}): eos_token of the tokenizer is token {tokenizer.eos_token_id}, and the "
            f"model has {size} tokens, so that no completion could end: take the model's own tokenizer, or "
            "resize the model's embeddings"
        )
    if tokenizer.pad_token_id >= size:
        tokenizer.pad_token = tokenizer.eos_token
    if unknown := sorted(token for token in tokenizer.get_vocab().values() if token >= size):
        logger.warning(
            "model.source (%s): the tokenizer has %d tokens that the model has not, the first is %s (%d): "
            "prompts must not have them",
            *(source, len(unknown), tokenizer.convert_ids_to_tokens(unknown[0]), unknown[0]),
        )
    _require_positions(config.get_text_config(), run_config)


def _require_positions(config: PreTrainedConfig, run_config: RunConfig) -> None:
    positions = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    # other ropes stretch the positions, each by a rule of its own, which vLLM knows
    is_stretched = rope.get("rope_type", "default") != "default"
    length = run_config.engine.max_model_len
    if positions is not None and not is_stretched and length > positions:
        raise UserError(
            f"engine.maxModelLen ({length}) is more than the {positions} positions of model.source "
            f"({run_config.model.source}): set engine.maxModelLen to {positions} or less"
        )
