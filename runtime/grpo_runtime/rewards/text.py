"""The text of a completion, and the part of it that is the answer."""

from typing import Any


def completion_text(completion: Any) -> str:
    """The text that the policy wrote; a completion is text, or the messages of a chat."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def final_answer(text: str) -> str:
    """The content of the last `<answer>...</answer>`; without one what follows `</think>`, or all of
    `text`."""
    _, opening, after = text.rpartition("<answer>")
    if opening:
        return after.partition("</answer>")[0].strip()
    return text.rpartition("</think>")[2].strip()
