"""What a client gets of a completion: text, thoughts and calls of tools."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # it imports tokenizers, and workers need a name alone
    from grpo_runtime.gateway.chat_template import Message

UNREADABLE_CALL = "unreadable_call"
"""A choice of an answer has it, as true, where its message was meant as a call that cannot be read."""


@dataclass(frozen=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: str
    """JSON, as the policy meant it."""


@dataclass(frozen=True)
class Reply:
    """A completion, read."""

    content: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    is_unreadable_call: bool = False
    """Whether it is meant as a call of a tool, and none can be read in it."""

    def message(self, *, number: int) -> dict[str, Any]:
        """The message of the assistant. `number` is that of the call within its session, and makes the ids of
        calls: nine letters and digits, which every template takes."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning"] = message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": f"t{number % 10**5:05d}{place % 10**3:03d}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for place, call in enumerate(self.calls)
            ]
        return message


class ReplyReader(Protocol):
    """Reads completions as those of one model are to be read."""

    def read(self, text: str, *, token_ids: Sequence[int], tools: "Sequence[Message]") -> Reply:
        """The reply that a completion is. `text` may be cut at a stop string. What cannot be read stays in
        the content."""
        ...


class PlainReplies:
    """Replies that are text alone, with thoughts and calls in it as they were sampled."""

    def read(self, text: str, *, token_ids: Sequence[int], tools: "Sequence[Message]") -> Reply:
        """The text is the content."""
        return Reply(text)
