"""One prompt of a dataset, and its token ids."""

from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from grpo_runtime.errors import UserError

Messages = list[dict[str, Any]]
"""A chat: messages with `role` and `content`."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One row of a dataset."""

    index: int
    """Its place in the dataset, from 0."""
    content: str | Messages
    """Text, or a chat that the tokenizer's chat template turns into text."""
    columns: dict[str, Any]
    """Every other column of the row by name, the answer included. Reward functions get all of them."""


def encode_prompt(prompt: Prompt, *, tokenizer: PreTrainedTokenizerBase, max_prompt_tokens: int) -> list[int]:
    """The token ids of `prompt`, as the policy gets them.

    Raises UserError that names the row when there is no token, when there are more than `max_prompt_tokens`
    (engine.maxModelLen minus sampling.maxTokens), and for a chat that has no template or is refused by it.
    """
    row = f"row {prompt.index + 1} of the dataset"
    if isinstance(prompt.content, str):
        token_ids: list[int] = tokenizer(prompt.content)["input_ids"]
    else:
        token_ids = _encode_chat(prompt.content, tokenizer=tokenizer, row=row)
    if not token_ids:
        raise UserError(f"{row} has a prompt without any token: remove the row or fill its prompt")
    if len(token_ids) > max_prompt_tokens:
        raise UserError(
            f"{row} has a prompt of {len(token_ids)} tokens but engine.maxModelLen minus sampling.maxTokens "
            f"leaves {max_prompt_tokens}: raise engine.maxModelLen or remove the row"
        )
    return list(token_ids)


def _encode_chat(chat: Messages, *, tokenizer: PreTrainedTokenizerBase, row: str) -> list[int]:
    if tokenizer.chat_template is None:
        raise UserError(f"{row} is a chat but the model's tokenizer has no chat template: use text prompts")
    try:
        encoded: Any = tokenizer.apply_chat_template(
            [_with_plain_text(message) for message in chat],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )
    except (TemplateError, TypeError) as error:
        # a TypeError where a template joins a content that is no text
        raise UserError(
            f"{row} is a chat that the model's chat template refuses ({error}): change it"
        ) from error
    return list(encoded["input_ids"])


def _with_plain_text(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose content is a list of texts, with their text: most templates of text models would write
    the list itself into the prompt."""
    content = message["content"]
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        return {**message, "content": "".join(part["text"] for part in content)}
    return message


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
