"""Which earlier call of a session a request continues.

A client sends the whole chat with every call, and changes what it got without meaning to: it strips text,
drops thoughts, cuts a stop string, writes the arguments of a call with other spaces. Such messages are the
same. One that is another in anything else begins another history.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo_runtime.gateway.chat_request import canonical
from grpo_runtime.gateway.chat_template import Message

_THOUGHTS_END = "</think>"

Essence = tuple[str, str, tuple[tuple[str, str], ...]]
"""Role, text, and the name and the arguments of each call."""


def essence(message: Message, *, stop: Sequence[str] = ()) -> Essence:
    """What two messages have in common that are the same. `stop` are texts at which the reply may have been
    cut."""
    text = str(message.get("content") or "").strip()
    if message["role"] == "assistant":
        text = text.rpartition(_THOUGHTS_END)[2].strip()
        for end in stop:
            text = text.removesuffix(end.strip()).strip()
    calls = (call["function"] for call in message.get("tool_calls") or ())
    return message["role"], text, tuple((call["name"], _arguments(call.get("arguments"))) for call in calls)


def _arguments(found: object) -> str:
    if not isinstance(found, str):
        return canonical(found)
    try:
        return canonical(json.loads(found))
    except (ValueError, RecursionError):  # no JSON, or too deep
        return found.strip()


@dataclass(frozen=True, eq=False)
class Exchange:
    """A call that was answered: the chat up to its reply, and the tokens of all that."""

    chat: tuple[Essence, ...]
    """The reply is the last."""
    reply: Message
    stop: tuple[str, ...]
    tools: str
    """Equal for equal tools."""
    token_ids: tuple[int, ...]
    """Prompt and completion, as the engine had them."""
    messages: tuple[Message, ...]
    """The chat, its replies as the policy gave them."""
    continues: "Exchange | None"
    """The call whose chat it goes on with."""

    @property
    def new_messages(self) -> tuple[int, int]:
        """[start, end) of the messages that are new with this call. Its reply is the next one."""
        return 0 if self.continues is None else len(self.continues.messages), len(self.messages) - 1

    def history(self) -> Iterator["Exchange"]:
        """It, and all that it continues."""
        exchange: Exchange | None = self
        while exchange is not None:
            yield exchange
            exchange = exchange.continues


def continued(messages: Sequence[Message], *, tools: str, exchanges: Sequence[Exchange]) -> Exchange | None:
    """The exchange with the longest chat that the messages begin with, and go on from; the newest of these.
    None where they continue no exchange."""
    for exchange in sorted(reversed(exchanges), key=lambda known: len(known.chat), reverse=True):
        length = len(exchange.chat)
        if length >= len(messages) or exchange.tools != tools:
            continue
        if tuple(essence(message, stop=exchange.stop) for message in messages[:length]) == exchange.chat:
            return exchange
    return None
