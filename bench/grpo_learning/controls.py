"""Rewards that say nothing about the task. A policy that learns it from them has another source."""

import hashlib
from typing import Any


def random_reward(completions: list[str], **_: Any) -> list[float]:
    """A number from 0 to 1 for each completion, drawn by its place and its text."""
    texts = (f"{place}:{text}" for place, text in enumerate(completions))
    return [int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32 for text in texts]


def constant_reward(completions: list[str], **_: Any) -> list[float]:
    """The same for all."""
    return [0.5] * len(completions)
