"""The text of a completion, and the part of it that is the answer."""

from typing import Any


def completion_text(completion: Any) -> str:
    """The policy's own words: a completion is text, or the messages of a chat."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def final_answer(text: str) -> str:
    """What stands in the last `<answer>...</answer>`; else what follows `</think>`; else all of `text`."""
    _, opening, after = text.rpartition("<answer>")
    if opening:
        return after.partition("</answer>")[0].strip()
    return text.rpartition("</think>")[2].strip()
