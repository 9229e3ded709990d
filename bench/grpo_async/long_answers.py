"""The user's code of cases (d) and (e): completions so long that weights change within them, and a reward for
the answer of the task, written again and again."""

from itertools import cycle
from typing import Any

from grpo_async.draws import BoundedPareto

LENGTHS = BoundedPareto(lowest=8, highest=128, shape=1.0)
"""Tokens of completions."""
MAX_TOKENS = round(LENGTHS.highest)


async def of_its_length(conversation: Any) -> None:
    """One turn, of a length that the completion's seed decides."""
    await conversation.sample(max_tokens=round(LENGTHS.of(conversation.seed)))


def share_of_answer(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """The share of characters that are those of the answer, written again and again, as `cbacb` for `cba`."""
    return [
        sum(ours == theirs for ours, theirs in zip(text, cycle(right), strict=False)) / max(1, len(text))
        for text, right in zip(completions, answer, strict=True)
    ]
