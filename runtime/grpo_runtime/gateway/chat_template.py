"""From a chat to token ids: the whole of it, or only what a template writes behind a sampled reply."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_runtime.errors import KnownError

Message = Mapping[str, Any]
"""A message of a chat as OpenAI's API has it, its content a text."""
_STAND_IN = "Reply{}Text"


class TemplateRefusesError(KnownError):
    """The chat template does not write this chat."""


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """The chat template of a job, for chats that grow by replies of its policy."""

    tokenizer: PreTrainedTokenizerBase
    template: str | None = None
    """Instead of the tokenizer's own."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    end_ids: frozenset[int]
    """Tokens that end a completion."""

    def prompt(self, messages: Sequence[Message], *, tools: Sequence[Message] = ()) -> list[int]:
        """The token ids of a whole chat, up to where the policy begins its reply.

        Raises TemplateRefusesError.
        """
        return self._encode(self._text(messages, tools=tools, has_reply_begun=True))

    def reply_text(self, reply: Message, *, tools: Sequence[Message] = ()) -> str | None:
        """A reply as the template writes it, up to the end of its turn; None for a chat that it refuses."""
        asked = [{"role": "user", "content": _STAND_IN}]
        try:
            begun = self._text(asked, tools=tools, has_reply_begun=True)
            whole = self._text([*asked, reply], tools=tools, has_reply_begun=False)
        except TemplateRefusesError:
            return None
        # a template may begin thoughts in a prompt, and write none of a turn that had none
        text = whole.removeprefix(begun) if whole.startswith(begun) else _behind_common_lines(begun, whole)
        return text[: min((place for end in self._ends if (place := text.find(end)) >= 0), default=None)]

    def behind_reply(
        self,
        reply: Message,
        more: Sequence[Message],
        *,
        sampled: Sequence[int],
        tools: Sequence[Message] = (),
    ) -> list[int] | None:
        """The token ids that follow the tokens `sampled` for `reply`: the end of its turn, unless that was
        sampled, the messages `more`, and the beginning of the next reply.

        They are what the template writes behind a stand-in for the reply, so what was sampled is not rendered
        again. None where the end of the turn is not found, or where a chat of the stand-in and `more` is
        refused.
        """
        try:
            behind, alone = self._behind_stand_in(reply, more, tools=tools)
        except TemplateRefusesError:
            return None
        end = self._turn_end(behind, alone)
        if end is None and reply.get("tool_calls"):
            return None  # what the template writes behind the stand-in is in part the end of a call
        token_ids = self._encode(behind[end or 0 :])
        has_ended = bool(sampled) and sampled[-1] in self.end_ids
        has_end_first = end is not None or self._has_other_end(alone, token_ids)
        return token_ids[1:] if has_ended and has_end_first else token_ids

    def _behind_stand_in(
        self, reply: Message, more: Sequence[Message], *, tools: Sequence[Message]
    ) -> tuple[str, str]:
        """What is written behind a stand-in for the reply, with `more` and without."""
        number = 0
        while True:
            mark = _STAND_IN.format(number)
            chat = [{"role": "user", "content": mark.lower()}, _stand_in(reply, mark)]
            text = self._text([*chat, *more], tools=tools, has_reply_begun=True)
            alone = self._text(chat, tools=tools, has_reply_begun=False)
            if text.count(mark) == 1 == alone.count(mark):
                return text.partition(mark)[2], alone.partition(mark)[2]
            if number > 9:
                raise TemplateRefusesError("the chat template does not write replies as they are")
            number += 1

    def _turn_end(self, behind: str, alone: str) -> int | None:
        """Where in `behind` the turn of the stand-in ends: at the first token that ends completions, before
        which there is only what `alone` has as well. Some templates write none, and some only before another
        message."""
        place = min((place for end in self._ends if (place := behind.find(end)) >= 0), default=None)
        is_found = place is not None and alone.startswith(behind[:place].rstrip())
        return place if is_found else None

    def _has_other_end(self, alone: str, token_ids: Sequence[int]) -> bool:
        """Whether these begin with what the template writes at the end of a turn that another message
        follows, where `alone` ends by a token that ends completions."""
        added = self.tokenizer.added_tokens_decoder.get(token_ids[0]) if token_ids else None
        has_end = any(alone.startswith(end) for end in self._ends)
        return has_end and added is not None and added.special

    @property
    def _ends(self) -> list[str]:
        return [str(self.tokenizer.convert_ids_to_tokens(token)) for token in self.end_ids]

    def _text(self, messages: Sequence[Message], *, tools: Sequence[Message], has_reply_begun: bool) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [_with_arguments(message) for message in messages],
                    tools=[dict(tool) for tool in tools] or None,
                    chat_template=self.template,
                    add_generation_prompt=has_reply_begun,
                    tokenize=False,
                    **self.arguments,
                )
            )
        except Exception as error:
            # a template is a program that somebody else wrote
            raise TemplateRefusesError(f"{type(error).__name__}: {error}") from error

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _behind_common_lines(one: str, other: str) -> str:
    """What of `other` is behind the lines that both begin with."""
    lines = other.splitlines(keepends=True)
    pairs = zip(one.splitlines(keepends=True), lines, strict=False)
    return "".join(lines[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) :])


def _stand_in(reply: Message, mark: str) -> dict[str, Any]:
    """A message of the same shape, with `mark` as the last text that its author wrote."""
    calls = reply.get("tool_calls") or []
    if not calls:
        return {"role": "assistant", "content": mark}
    *others, last = calls
    marked = {**last, "function": {**last["function"], "arguments": {mark.lower(): mark}}}
    return {"role": "assistant", "content": "", "tool_calls": [*others, marked]}


def _with_arguments(message: Message) -> dict[str, Any]:
    """The message with the arguments of its calls as objects, which is what templates expect; OpenAI's API
    has them as JSON."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": _parsed(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
