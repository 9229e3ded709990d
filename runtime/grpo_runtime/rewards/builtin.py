"""Reward functions that need no code. Each compares one completion with its answer; both are text."""

from collections.abc import Callable


def exact_match(completion: str, answer: str) -> float:
    """1 when the completion is the answer, spaces at both ends aside; else 0."""
    return float(completion.strip() == answer.strip())


def char_accuracy(completion: str, answer: str) -> float:
    """The share of characters that are right at their position, from 0 to 1.

    Of the longer of the two, so that adding characters costs what leaving them out does. Partial credit is
    what lets an untrained policy find the first step; `exact_match` is 0 everywhere for it.
    """
    length = max(len(completion), len(answer))
    if length == 0:
        return 1.0
    return sum(ours == theirs for ours, theirs in zip(completion, answer, strict=False)) / length


BUILTIN_REWARDS: dict[str, Callable[[str, str], float]] = {
    "exact_match": exact_match,
    "char_accuracy": char_accuracy,
}
"""By the name in rewards[].builtin."""
