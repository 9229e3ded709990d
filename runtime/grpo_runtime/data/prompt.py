"""One prompt of a dataset, and its token ids."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How a chat becomes text. The defaults leave everything to the model's tokenizer."""

    is_applied_to_text: bool = False
    """Whether a text prompt is a chat of one message."""
    system_prompt: str | None = None
    template: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    needed_by: str | None = None
    """A field of the job that means nothing for a prompt that is no chat."""


class OverlongPromptError(UserError):
    """A prompt leaves no room for its completions."""


def encode_prompt(
    prompt: Prompt,
    *,
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_tokens: int,
    chat_options: ChatOptions | None = None,
) -> list[int]:
    """The token ids of `prompt`, as the policy gets them.

    Raises OverlongPromptError when there are more than `max_prompt_tokens` (engine.maxModelLen minus
    sampling.maxTokens). Raises UserError that names the row when there is no token, for a chat that has no
    template or is refused by it, and for a text that options of a chat are meant for.
    """
    row = f"row {prompt.index + 1} of the dataset"
    chat, chat_options = prompt.content, chat_options or ChatOptions()
    if isinstance(chat, str) and chat_options.is_applied_to_text:
        chat = [{"role": "user", "content": chat}]
    if isinstance(chat, str):
        if chat_options.needed_by is not None:
            raise UserError(
                f"{row} is text, for which sampling.{chat_options.needed_by} means nothing: set "
                f"sampling.applyChatTemplate to true, or remove sampling.{chat_options.needed_by}"
            )
        # not verbose: what is too long is refused below, with its row
        token_ids: list[int] = tokenizer(chat, verbose=False)["input_ids"]
    else:
        token_ids = _encode_chat(chat, tokenizer=tokenizer, row=row, options=chat_options)
    if not token_ids:
        raise UserError(f"{row} has a prompt without any token: remove the row or fill its prompt")
    if len(token_ids) > max_prompt_tokens:
        raise OverlongPromptError(
            f"{row} has a prompt of {len(token_ids)} tokens but engine.maxModelLen minus sampling.maxTokens "
            f"leaves {max_prompt_tokens}: raise engine.maxModelLen or remove the row"
        )
    return list(token_ids)


def _encode_chat(
    chat: Messages, *, tokenizer: PreTrainedTokenizerBase, row: str, options: ChatOptions
) -> list[int]:
    if tokenizer.chat_template is None and options.template is None:
        raise UserError(
            f"{row} is a chat but the model's tokenizer has no chat template: use text prompts without "
            "sampling.applyChatTemplate, or set sampling.chatTemplate"
        )
    if options.system_prompt is not None and chat[0]["role"] != "system":
        chat = [{"role": "system", "content": options.system_prompt}, *chat]
    try:
        encoded: Any = tokenizer.apply_chat_template(
            [_with_plain_text(message) for message in chat],
            chat_template=options.template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            tokenizer_kwargs={"verbose": False},
            **options.arguments,
        )
    except (TemplateError, TypeError) as error:
        # a TypeError where a template joins a content that is no text
        whose = "sampling.chatTemplate" if options.template else "the model's chat template"
        raise UserError(f"{row} is a chat that {whose} refuses ({error}): change it") from error
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
