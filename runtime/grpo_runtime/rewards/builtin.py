"""Reward functions that need no code: made from their options, called the way TRL calls functions."""

import re
from collections.abc import Callable
from typing import Any

from grpo_runtime.errors import UserError
from grpo_runtime.rewards.text import completion_text
from grpo_runtime.rewards.types import BuiltinOptions, RewardCall


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


def compared(score: Callable[[str, str], Any], options: BuiltinOptions) -> RewardCall:
    """Compare every completion with the answer of its row; None where the row has no answer."""

    def call(*, completions: list[Any], **columns: list[Any]) -> list[Any]:
        answers = columns[options.answer_column]
        return [
            None if answer is None else score(completion_text(completion), str(answer))
            for completion, answer in zip(completions, answers, strict=True)
        ]

    return call


def regex(options: BuiltinOptions) -> RewardCall:
    """1 when `pattern` is found in the completion, else 0. Raises UserError when it is no pattern."""
    try:
        pattern = re.compile(options.pattern)
    except re.error as error:
        raise UserError(f"pattern ({options.pattern}) is no regular expression: {error}") from error
    return _of_text(lambda text: float(pattern.search(text) is not None))


_R1_FORMAT = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)
_R1_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def r1_format(text: str) -> float:
    """1 for `<think>...</think>` and then `<answer>...</answer>`, each once, and nothing around; else 0.

    The format reward of DeepSeek-R1 (arXiv 2501.12948, section 2.2.2 and table 1). Tags count once, so that
    repeating them cannot pay.
    """
    return float(all(text.count(tag) == 1 for tag in _R1_TAGS) and _R1_FORMAT.fullmatch(text) is not None)


def overlong_punishment(num_tokens: int, *, max_tokens: int, overlong_tokens: int) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13), from 0 down to -1.

    With |y| = num_tokens, L_max = max_tokens and L_cache = overlong_tokens:

        0                                  if |y| <= L_max - L_cache
        ((L_max - L_cache) - |y|) / L_cache if L_max - L_cache < |y| <= L_max
        -1                                 if L_max < |y|
    """
    excess = num_tokens - (max_tokens - overlong_tokens)
    return -min(max(excess / overlong_tokens, 0.0), 1.0)


def length(options: BuiltinOptions) -> RewardCall:
    """`overlong_punishment` of every completion's token ids."""

    def call(*, completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [
            overlong_punishment(
                len(ids), max_tokens=options.max_tokens, overlong_tokens=options.overlong_tokens
            )
            for ids in completion_ids
        ]

    return call


def _of_text(score: Callable[[str], float]) -> RewardCall:
    def call(*, completions: list[Any], **_: Any) -> list[float]:
        return [score(completion_text(completion)) for completion in completions]

    return call


def _math_verify(options: BuiltinOptions) -> RewardCall:
    from grpo_runtime.rewards.math_answers import math_verify

    return compared(math_verify, options)


def _reasoning_gym(options: BuiltinOptions) -> RewardCall:
    from grpo_runtime.rewards.puzzles import reasoning_gym

    return reasoning_gym(options)


BUILTIN_REWARDS: dict[str, Callable[[BuiltinOptions], RewardCall]] = {
    "exact_match": lambda options: compared(exact_match, options),
    "char_accuracy": lambda options: compared(char_accuracy, options),
    "regex": regex,
    "format": lambda _: _of_text(r1_format),
    "length": length,
    "math_verify": _math_verify,
    "reasoning_gym": _reasoning_gym,
}
"""By the name in rewards[].builtin."""
