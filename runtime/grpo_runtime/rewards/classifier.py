"""A reward model: a sequence classifier whose only logit is the reward. Runs in the worker process.
B completions, T tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from grpo_runtime.errors import UserError
from grpo_runtime.rewards.types import RewardCall, RewardModel


def load_classifier(reward_model: RewardModel) -> RewardCall:
    """A reward function that asks the model, with the weights read.

    Raises UserError when the directory holds no classifier with one label, or lacks some of its weights.
    """
    torch.set_num_threads(reward_model.num_threads)
    model, tokenizer = _load(reward_model)
    if model.config.num_labels != 1:
        raise UserError(
            f"rewards: the model {reward_model.source} has {model.config.num_labels} labels, and a reward "
            "model has one: take another model, or score with it in a function of yours"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    # the logit is that of the last token which is no padding
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return lambda prompts, completions: _scores(
        model, tokenizer, texts=_texts(tokenizer, prompts, completions), batch_size=reward_model.batch_size
    )


def _load(reward_model: RewardModel) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = reward_model.folder
    try:
        model, report = AutoModelForSequenceClassification.from_pretrained(
            folder,
            output_loading_info=True,
            dtype=getattr(torch, reward_model.dtype),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"rewards: the model {reward_model.source} cannot be loaded: {error}") from error
    # transformers would only warn, and score with random numbers
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"rewards: the model {reward_model.source} lacks {len(missing)} of the weights of a classifier, "
            f"the first is {missing[0]}: take a reward model"
        )
    return model.eval(), tokenizer


def _texts(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Any], completions: Sequence[Any]
) -> list[str]:
    """What the model reads: prompt and completion, joined, or as a chat through its template."""
    return [
        prompt + completion
        if isinstance(prompt, str)
        else str(tokenizer.apply_chat_template([*prompt, *completion], tokenize=False))
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


@torch.inference_mode()
def _scores(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, texts: Sequence[str], batch_size: int
) -> list[float]:
    """[B] logits."""
    scores: list[float] = []
    for first in range(0, len(texts), batch_size):
        batch = list(texts[first : first + batch_size])
        # a template has written the special tokens, and TRL adds none to a plain text either
        inputs = tokenizer(
            batch, return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False
        )
        _refuse_long(inputs["input_ids"].shape[1], model=model)
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        scores += logits[:, 0].float().tolist()
    return scores


def _refuse_long(num_tokens: int, *, model: PreTrainedModel) -> None:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and num_tokens > limit:
        raise ValueError(
            f"prompt and completion have {num_tokens} tokens, and the reward model reads {limit}: lower "
            "sampling.maxTokens, or take a model that reads more"
        )
