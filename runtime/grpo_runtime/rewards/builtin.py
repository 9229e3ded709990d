"""Reward functions that need no code. Each is made from the options it names and called the way TRL calls
reward functions; `registry` lists them."""

import re
from collections.abc import Callable
from typing import Any

from grpo_runtime.data.answers import accepted_answers
from grpo_runtime.errors import UserError
from grpo_runtime.rewards.text import completion_text
from grpo_runtime.rewards.types import RewardCall


def exact_match(completion: str, answer: str) -> float:
    """1 when the completion is the answer, apart from spaces at both ends; else 0."""
    return float(completion.strip() == answer.strip())


def char_accuracy(completion: str, answer: str) -> float:
    """The share of characters that are right at their position, from 0 to 1.

    It is a share of the longer text, so that a character too many costs as much as a character too few. An
    untrained policy gets partial credit, where `exact_match` is 0 for everything it writes.
    """
    length = max(len(completion), len(answer))
    if length == 0:
        return 1.0
    return sum(ours == theirs for ours, theirs in zip(completion, answer, strict=False)) / length


def compared(
    score: Callable[[str, str], Any], *, answer_column: str, reads_prefill: bool = False
) -> RewardCall:
    """A reward that compares every completion with the answer of its row, and counts the best of several
    accepted ones; None where the row has none. With `reads_prefill` a completion begins with what the prompt
    has written of it."""

    def call(*, completions: list[Any], prefills: list[str], **columns: list[Any]) -> list[Any]:
        texts = [
            (prefill if reads_prefill else "") + completion_text(completion)
            for completion, prefill in zip(completions, prefills, strict=True)
        ]
        return [
            _best([score(text, accepted) for accepted in accepted_answers(answer)])
            for text, answer in zip(texts, columns[answer_column], strict=True)
        ]

    return call


def _best(scores: list[Any]) -> Any:
    """The highest of the scores that are numbers; else the first, which says why it is none."""
    return max((score for score in scores if isinstance(score, float)), default=next(iter(scores), None))


def regex(*, pattern: str) -> RewardCall:
    """1 when `pattern` is found in the completion, else 0. Raises UserError for an invalid pattern."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"pattern ({pattern}) is no regular expression: {error}") from error
    return of_text(lambda text: float(compiled.search(text) is not None))


_R1_FORMAT = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)
_R1_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def r1_format(text: str, *, prefill: str = "") -> float:
    """1 for `<think>...</think>` and then `<answer>...</answer>`, each once, and nothing around; else 0. Tags
    that the prompt has opened, in `prefill`, count as written.

    The format reward of DeepSeek-R1 (arXiv 2501.12948, section 2.2.2 and table 1). Every tag may occur once
    only, so that repeating tags does not pay.
    """
    _, opening, rest = prefill.partition("<think>")
    text = opening + rest + text
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


def length(*, max_tokens: int, overlong_tokens: int) -> RewardCall:
    """`overlong_punishment` of the number of every completion's tokens."""

    def call(*, completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [
            overlong_punishment(len(ids), max_tokens=max_tokens, overlong_tokens=overlong_tokens)
            for ids in completion_ids
        ]

    return call


def r1_format_of_all(*, completions: list[Any], prefills: list[str], **_: Any) -> list[float]:
    """`r1_format` of each completion."""
    return [
        r1_format(completion_text(completion), prefill=prefill)
        for completion, prefill in zip(completions, prefills, strict=True)
    ]


def of_text(score: Callable[[str], float]) -> RewardCall:
    """A reward that looks at the text of each completion alone."""

    def call(*, completions: list[Any], **_: Any) -> list[float]:
        return [score(completion_text(completion)) for completion in completions]

    return call
