"""The user's code of case (a): a tool that takes long now and then, and a reward that is learned quickly."""

import asyncio
from typing import Any

from grpo_async.draws import BoundedPareto

LATENCY = BoundedPareto(lowest=0.2, highest=5.0, shape=1.0)
"""Seconds."""
SAID = "."
"""What the tool says."""
TURN_TOKENS = 3
MAX_TOKENS = 2 * TURN_TOKENS + len(SAID)


async def with_tool(conversation: Any) -> None:
    """A turn, the tool, and another turn."""
    await conversation.sample(max_tokens=TURN_TOKENS)
    await asyncio.sleep(LATENCY.of(conversation.seed))
    conversation.add(SAID)
    await conversation.sample(max_tokens=TURN_TOKENS)


def share_of_letters(completions: list[str], **_: Any) -> list[float]:
    """The share of small letters in what the policy wrote."""
    texts = [text.replace(SAID, "") for text in completions]
    return [sum("a" <= char <= "z" for char in text) / max(1, len(text)) for text in texts]
