"""The coroutine: it answers the calls of the calculator until a reply has none."""

from typing import Any

from grpo_learning.chat_policy import CALCULATOR
from grpo_turns.program import answered


async def asks(client: Any, prompt: Any) -> None:
    """As users write it: messages go back as the client gives them."""
    messages: list[Any] = [*prompt]
    while True:
        answer = await client.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR])
        message = answer.choices[0].message
        if not message.tool_calls:
            return
        messages += [message, *map(answered, message.tool_calls)]
