"""Reads replies with vLLM's parsers, without its server: calls of tools and thoughts.

What imports this imports vLLM, which takes seconds.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from transformers import PreTrainedTokenizerBase
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager
from vllm.tool_parsers.tool_strict_level import ToolStrictLevel

from grpo_runtime.errors import UserError
from grpo_runtime.gateway.chat_template import Message
from grpo_runtime.gateway.replies import Call, Reply

logger = logging.getLogger(__name__)

_ANY_TOOL = {"type": "function", "function": {"name": "any", "parameters": {"type": "object"}}}


class VllmReplies:
    """Replies as vLLM's server reads them, with `--tool-call-parser` and `--reasoning-parser`."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """`template_arguments` are those of the chat template: they may say that replies have no thoughts.

        Raises UserError for a parser that vLLM does not have, or that does not fit the tokenizer.
        """
        # vLLM takes a tokenizer of transformers, which has all that its protocol asks for
        self._tokenizer = cast(Any, tokenizer)
        self._template_arguments = dict(template_arguments or {})
        try:
            self._parser = ParserManager.get_parser(
                tool_parser_name=tool_call_parser,
                reasoning_parser_name=reasoning_parser,
                enable_auto_tools=True,
                tokenizer=self._tokenizer,
            )
        except TypeError as error:
            raise UserError(f"vLLM does not read replies so: {error}") from error
        self._marks = self._marks_of_calls()

    def read(self, text: str, *, token_ids: Sequence[int], tools: Sequence[Message]) -> Reply:
        """The reply that a completion is. What a parser cannot read stays in the content.

        It is an unreadable call where a parser of calls finds none behind a text with which a call begins, or
        raises. Parsers for whose calls vLLM has no grammar, such as `pythonic`, do not say with which text
        one begins. With tools that vLLM does not take a reply is its text.
        """
        if self._parser is None:
            return Reply(text)
        try:
            request = ChatCompletionRequest(
                model="",
                messages=[],
                tools=list(tools) or None,
                tool_choice="auto" if tools else "none",
                chat_template_kwargs=self._template_arguments,
            )
            given: list[Any] | None = request.tools
            parser = self._parser(self._tokenizer, tools=given, chat_template_kwargs=self._template_arguments)
        except Exception as error:
            # tools are what an agent makes of them
            logger.warning("tools were not understood (%s: %s)", type(error).__name__, error)
            return Reply(text)
        try:
            reasoning, content, calls = parser.parse(
                text, request, enable_auto_tools=bool(tools), model_output_token_ids=list(token_ids)
            )
            # arguments may have half of a pair of surrogates, which no answer can
            "".join(f"{call.name}{call.arguments}" for call in calls or ()).encode()
        except Exception as error:
            # a young policy writes what no parser has seen
            logger.warning("a reply was not understood (%s: %s)", type(error).__name__, error)
            return Reply(text, is_unreadable_call=bool(tools) and parser.tool_parser is not None)
        thoughts = reasoning or ""
        has_mark = any(text.count(mark) > thoughts.count(mark) for mark in self._marks)
        return Reply(
            content or "",
            reasoning=thoughts,
            calls=tuple(Call(call.name, call.arguments) for call in calls or ()),
            is_unreadable_call=bool(tools) and not calls and has_mark,
        )

    def _marks_of_calls(self) -> tuple[str, ...]:
        """The texts with which a call begins: those at which vLLM's grammar of calls takes over, up to a
        space. Empty without a parser of calls, and where vLLM has no such grammar."""
        request = ChatCompletionRequest(model="", messages=[], tools=[_ANY_TOOL], tool_choice="auto")
        given: list[Any] | None = request.tools
        parser = None if self._parser is None else self._parser(self._tokenizer, tools=given).tool_parser
        tag = (
            None
            if parser is None
            else parser.get_structural_tag(request, strict_level=ToolStrictLevel.FUNCTION)
        )
        return () if tag is None else tuple(mark.split()[0] for mark in _triggers(tag.model_dump()))


def _triggers(part: Any) -> Iterator[str]:
    """The triggers in a structural tag of xgrammar."""
    if isinstance(part, dict):
        yield from part.get("triggers", ())
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from _triggers(each)
