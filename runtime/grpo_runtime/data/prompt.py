"""One prompt of a dataset, and its token ids."""

import re
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
    """The token ids of `prompt`, as the policy gets them. A chat that ends with a message of the assistant is
    continued.

    Raises OverlongPromptError when there are more than `max_prompt_tokens` (engine.maxModelLen minus
    sampling.maxTokens). Raises UserError that names the row when there is no token, for a prompt that ends
    with the end of a sequence or of a turn, for a chat that has no template or is refused by it, and for a
    text that options of a chat are meant for.
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
        token_ids = _encode_text(chat, tokenizer=tokenizer)
        fix = "remove it from the text"
    else:
        token_ids = _encode_chat(chat, tokenizer=tokenizer, row=row, options=chat_options)
        fix = "write a generation prompt in sampling.chatTemplate where add_generation_prompt is true"
    if token_ids[:2] == [tokenizer.bos_token_id] * 2:
        # the text has one, and the tokenizer or the template has written another
        token_ids = token_ids[1:]
    if not token_ids:
        raise UserError(f"{row} has a prompt without any token: remove the row or fill its prompt")
    if ended := _end_of(token_ids, tokenizer=tokenizer):
        raise UserError(
            f"{row} has a prompt that ends with {ended}, and completions would stand behind the end: {fix}"
        )
    if len(token_ids) > max_prompt_tokens:
        raise OverlongPromptError(
            f"{row} has a prompt of {len(token_ids)} tokens but engine.maxModelLen minus sampling.maxTokens "
            f"leaves {max_prompt_tokens}: raise engine.maxModelLen or remove the row"
        )
    return token_ids


def is_continued(content: str | Messages) -> bool:
    """Whether completions go on with the last message of the prompt, which the assistant has begun."""
    return not isinstance(content, str) and content[-1]["role"] == "assistant"


_OPENED = re.compile(r"(?:<think>\s*(?:</think>\s*)?)?(?:<answer>\s*)?$")


def prefill_of(content: str | Messages, *, text: str) -> str:
    """What of a completion the prompt has written itself, where `text` is the end of the encoded prompt: the
    message that is continued, or tags such as `<think>` that a chat template, or a prompt of text, ends
    with."""
    if is_continued(content):
        return str(_with_plain_text(content[-1])["content"])  # type: ignore[arg-type]
    found = _OPENED.search(text)
    return found[0] if found else ""


def _encode_text(text: str, *, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    # not verbose: what is too long is refused with its row
    token_ids: list[int] = list(tokenizer(text, verbose=False)["input_ids"])
    has_end = token_ids[-1:] == [tokenizer.eos_token_id] and not text.endswith(tokenizer.eos_token)
    # some tokenizers write an end behind every text, and the policy goes on there
    return token_ids[:-1] if has_end else token_ids


def _end_of(token_ids: list[int], *, tokenizer: PreTrainedTokenizerBase) -> str:
    """The end-of-sequence token that a prompt ends with, white space behind it aside; empty where it ends
    with none. The only token of a prompt may be one that is also a beginning."""
    last = len(token_ids) - 1
    while last > 0 and not str(tokenizer.decode(token_ids[last:])).strip():
        last -= 1
    if token_ids[last] != tokenizer.eos_token_id or (last == 0 and tokenizer.bos_token_id == token_ids[0]):
        return ""
    return str(tokenizer.eos_token)


def _encode_chat(
    chat: Messages, *, tokenizer: PreTrainedTokenizerBase, row: str, options: ChatOptions
) -> list[int]:
    if tokenizer.chat_template is None and options.template is None:
        raise UserError(
            f"{row} is a chat but the model's tokenizer has no chat template: use text prompts without "
            "sampling.applyChatTemplate, or set sampling.chatTemplate"
        )
    is_ours = options.system_prompt is not None and chat[0]["role"] != "system"
    if is_ours:
        chat = [{"role": "system", "content": options.system_prompt}, *chat]
    if is_continued(chat) and not chat[-1]["content"]:
        raise UserError(
            f"{row} ends with a message of the assistant without text, which the policy cannot continue: "
            "remove the message"
        )
    try:
        encoded: Any = tokenizer.apply_chat_template(
            [_with_plain_text(message) for message in chat],
            chat_template=options.template,
            add_generation_prompt=not is_continued(chat),
            continue_final_message=is_continued(chat),
            tokenize=True,
            return_dict=True,
            tokenizer_kwargs={"verbose": False},
            **options.arguments,
        )
    except (TemplateError, TypeError, ValueError) as error:
        # a TypeError where a template joins a content that is no text, a ValueError where it drops the
        # message that is to be continued
        whose = "sampling.chatTemplate" if options.template else "the model's chat template"
        if is_ours and "system" in str(error).lower():
            raise UserError(
                f"sampling.systemPrompt: {whose} refuses a system message ({error}): remove "
                "sampling.systemPrompt and begin the prompts with its text"
            ) from error
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
