"""Reads replies with vLLM's parsers, without its server: calls of tools and thoughts.

What imports this imports vLLM, which takes seconds.
"""

import logging
from collections.abc import Sequence
from typing import Any, cast

from transformers import PreTrainedTokenizerBase
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager

from grpo_runtime.errors import UserError
from grpo_runtime.gateway.chat_template import Message
from grpo_runtime.gateway.replies import Call, Reply

logger = logging.getLogger(__name__)


class VllmReplies:
    """Replies as vLLM's server reads them, with `--tool-call-parser` and `--reasoning-parser`."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        """Raises UserError for a parser that vLLM does not have, or that does not fit the tokenizer."""
        # vLLM takes a tokenizer of transformers, which has all that its protocol asks for
        self._tokenizer = cast(Any, tokenizer)
        try:
            self._parser = ParserManager.get_parser(
                tool_parser_name=tool_call_parser,
                reasoning_parser_name=reasoning_parser,
                enable_auto_tools=True,
                tokenizer=self._tokenizer,
            )
        except TypeError as error:
            raise UserError(f"vLLM does not read replies so: {error}") from error

    def read(self, text: str, *, token_ids: Sequence[int], tools: Sequence[Message]) -> Reply:
        """The reply that a completion is. What a parser cannot read stays in the content."""
        if self._parser is None:
            return Reply(text)
        request = ChatCompletionRequest(
            model="", messages=[], tools=list(tools) or None, tool_choice="auto" if tools else "none"
        )
        given: list[Any] | None = request.tools
        parser = self._parser(self._tokenizer, tools=given)
        try:
            reasoning, content, calls = parser.parse(
                text, request, enable_auto_tools=bool(tools), model_output_token_ids=list(token_ids)
            )
            # arguments may have half of a pair of surrogates, which no answer can
            "".join(f"{call.name}{call.arguments}" for call in calls or ()).encode()
        except Exception as error:
            # a young policy writes what no parser has seen
            logger.warning("a reply was not understood (%s: %s)", type(error).__name__, error)
            return Reply(text)
        return Reply(
            content or "",
            reasoning=reasoning or "",
            calls=tuple(Call(call.name, call.arguments) for call in calls or ()),
        )
