"""One prompt of a dataset, and its token ids."""

import re
from collections.abc import Mapping, Set
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
    """Its index in the dataset, from 0."""
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
    end_ids: Set[int] = frozenset(),
) -> list[int]:
    """The token ids of `prompt`, as the policy gets them. A chat that ends with a message of the assistant is
    continued. `end_ids` are tokens that end a completion, beside the tokenizer's own.

    Raises OverlongPromptError when there are more than `max_prompt_tokens` (engine.maxModelLen minus
    sampling.maxTokens). Raises UserError that names the row when there is no token, for a prompt that ends
    with the end of a sequence or of a turn, for a chat that has no template or is refused by it, for a
    message without text, and for a text that options of a chat are meant for; one that names
    sampling.systemPrompt where the template refuses that or leaves it out.
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
    while token_ids[:2] == [tokenizer.bos_token_id] * 2:
        # the text has one, and the tokenizer or the template has written another
        token_ids = token_ids[1:]
    if not token_ids:
        raise UserError(f"{row} has a prompt without any token: remove the row or fill its prompt")
    if ended := _end_of(token_ids, tokenizer=tokenizer, end_ids={tokenizer.eos_token_id, *end_ids}):
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
    """Whether completions continue with the last message of the prompt, which the assistant has begun."""
    return not isinstance(content, str) and content[-1]["role"] == "assistant"


_OPENED = r"(?:<answer>\s*)?(?:\\boxed\{\s*)?$"
_OPENED_BY_TEXT = re.compile(r"(?:<think>\s*)?" + _OPENED)
_OPENED_BY_TEMPLATE = re.compile(r"(?:<think>\s*(?:</think>\s*)?)?" + _OPENED)


def prefill_of(content: str | Messages, *, text: str) -> str:
    """What of a completion the prompt has written itself, where `text` is the end of the encoded prompt: the
    message that is continued, as the template has trimmed it, or tags such as `<think>`, or an open
    `\\boxed{`, that a chat template or a text ends with. Thoughts that are closed already are of the
    completion where a template has written them, and of the question where they end the row's own text."""
    if is_continued(content):
        message = str(_with_plain_text(content[-1])["content"])  # type: ignore[arg-type]
        kept = (form for form in (message, message.lstrip()) if _ends_alike(form, text))
        return next(kept, message.strip())
    is_own_text = isinstance(content, str) and _ends_alike(content, text)
    found = (_OPENED_BY_TEXT if is_own_text else _OPENED_BY_TEMPLATE).search(text)
    return found[0] if found else ""


def _ends_alike(one: str, other: str) -> bool:
    return one.endswith(other) or other.endswith(one)


def _encode_text(text: str, *, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    # not verbose: what is too long is refused with its row
    token_ids: list[int] = list(tokenizer(text, verbose=False)["input_ids"])
    has_end = token_ids[-1:] == [tokenizer.eos_token_id] and not text.endswith(tokenizer.eos_token)
    # some tokenizers write an end behind every text, and the policy continues there
    return token_ids[:-1] if has_end else token_ids


def _end_of(token_ids: list[int], *, tokenizer: PreTrainedTokenizerBase, end_ids: Set[int | None]) -> str:
    """The token of `end_ids` that a prompt ends with, white space behind it aside; empty where it ends with
    none. The only token of a prompt may be one that is also a beginning."""
    last = len(token_ids) - 1
    while last > 0 and not str(tokenizer.decode(token_ids[last:])).strip():
        last -= 1
    if token_ids[last] not in end_ids or (last == 0 and tokenizer.bos_token_id == token_ids[0]):
        return ""
    return str(tokenizer.convert_ids_to_tokens(token_ids[last]))


class _RefusedError(Exception):
    """A template does not write a chat."""


def _encode_chat(
    chat: Messages, *, tokenizer: PreTrainedTokenizerBase, row: str, options: ChatOptions
) -> list[int]:
    if tokenizer.chat_template is None and options.template is None:
        raise UserError(
            f"{row} is a chat but the model's tokenizer has no chat template: use text prompts without "
            "sampling.applyChatTemplate, or set sampling.chatTemplate"
        )
    if is_continued(chat) and not chat[-1]["content"]:
        raise UserError(
            f"{row} ends with a message of the assistant without text, which the policy cannot continue: "
            "remove the message"
        )
    chat = [_with_plain_text(message) for message in chat]
    for number, message in enumerate(chat, start=1):
        if fault := _fault_of(message, tokenizer=tokenizer):
            raise UserError(f"{row}: message {number} ({message['role']}) {fault}")
    system_prompt = options.system_prompt if chat[0]["role"] != "system" else None
    whose = "sampling.chatTemplate" if options.template else "the model's chat template"
    begin_with_it = "remove sampling.systemPrompt and begin the prompts with its text"
    whole = chat if system_prompt is None else [{"role": "system", "content": system_prompt}, *chat]
    try:
        text = _rendered(whole, tokenizer=tokenizer, options=options)
    except _RefusedError as error:
        if system_prompt is not None and _is_taken(chat, tokenizer=tokenizer, options=options):
            raise UserError(
                f"sampling.systemPrompt: {whose} refuses a system message ({error}): {begin_with_it}"
            ) from error
        raise UserError(f"{row} is a chat that {whose} refuses ({error}): change it") from error
    if system_prompt is not None and system_prompt.strip() not in text:
        raise UserError(f"sampling.systemPrompt: {whose} leaves a system message out: {begin_with_it}")
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _rendered(chat: Messages, *, tokenizer: PreTrainedTokenizerBase, options: ChatOptions) -> str:
    """The text that the template makes of a chat. Raises _RefusedError for whatever a template raises: it is
    a program that somebody else wrote."""
    try:
        return str(
            tokenizer.apply_chat_template(
                chat,
                chat_template=options.template,
                add_generation_prompt=not is_continued(chat),
                continue_final_message=is_continued(chat),
                tokenize=False,
                **options.arguments,
            )
        )
    except (TemplateError, ValueError) as error:
        # a ValueError where it drops the message that is to be continued
        raise _RefusedError(str(error)) from error
    except Exception as error:
        raise _RefusedError(f"{type(error).__name__}: {error}") from error


def _is_taken(chat: Messages, *, tokenizer: PreTrainedTokenizerBase, options: ChatOptions) -> bool:
    try:
        _rendered(chat, tokenizer=tokenizer, options=options)
    except _RefusedError:
        return False
    return True


def _with_plain_text(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose content is a list of texts, with their text: most templates of text models would write
    the list itself into the prompt."""
    content = message["content"]
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        return {**message, "content": "".join(part["text"] for part in content)}
    return message


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _fault_of(message: dict[str, Any], *, tokenizer: PreTrainedTokenizerBase) -> str:
    """What no template should get of a message, as the end of a sentence; empty where it is fine. A message
    that calls tools may have no text."""
    content = message["content"]
    if content is None and message.get("tool_calls"):
        return ""
    if not isinstance(content, str):
        what = "null" if content is None else f"no text ({type(content).__name__})"
        if isinstance(content, list):
            kinds = (part.get("type") if isinstance(part, dict) else part for part in content)
            what = f"a list with parts other than text ({', '.join(sorted({str(kind) for kind in kinds}))})"
        return f"has a content that is {what}: make it text"
    if tokenizer.bos_token and tokenizer.bos_token in content:
        return (
            f"has {tokenizer.bos_token}, with which a sequence begins: give a chat that is a whole text "
            f"already as text, with sampling.applyChatTemplate false, or remove {tokenizer.bos_token}"
        )
    return ""
