"""Every built-in reward by its name, and its function; there is no other list of them.

To add one, write its function and add a row to BUILTIN_REWARDS, which names the options of the job that the
function is made from. `grpo_api.v1alpha1.spec.BuiltinReward` has the same names, and a test compares them.
Functions are called the way TRL calls reward functions.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from grpo_runtime.data.answers import accepted_answers
from grpo_runtime.data.reasoning_gym import ENTRY_INDEX, SAME_EVERYWHERE, TASK_URL, make_entry, make_task
from grpo_runtime.errors import UserError
from grpo_runtime.rewards.types import BuiltinOptions, RewardCall, Unscorable

_ANSWER = "answer_column"
_R1_FORMAT = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)
_R1_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass(frozen=True, kw_only=True)
class Builtin:
    """One built-in reward."""

    make: Callable[..., RewardCall]
    """Called once in the worker with `options` as keyword arguments. Raises UserError when one is wrong."""
    options: tuple[str, ...] = ()
    """The fields of BuiltinOptions that it needs."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that its worker has to start with."""
    accepts: Callable[[str], bool] | None = None
    """Whether it gives 1 to a completion that repeats this answer. The trainer calls it for every answer of
    the dataset, so it is quick and depends on the answer alone. None where every answer will do."""


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


def of_text(score: Callable[[str], float]) -> RewardCall:
    """A reward that looks at the text of each completion alone."""

    def call(*, completions: list[Any], **_: Any) -> list[float]:
        return [score(completion_text(completion)) for completion in completions]

    return call


def r1_format(text: str, *, prefill: str = "") -> float:
    """1 for `<think>...</think>` and then `<answer>...</answer>`, each once, and nothing around; else 0. Tags
    that the prompt has opened, in `prefill`, count as written.

    The format reward of DeepSeek-R1 (arXiv 2501.12948, section 2.2.2 and table 1). Every tag may occur once
    only, so that repeating tags does not pay.
    """
    _, opening, rest = prefill.partition("<think>")
    text = opening + rest + text
    return float(all(text.count(tag) == 1 for tag in _R1_TAGS) and _R1_FORMAT.fullmatch(text) is not None)


def r1_format_of_all(*, completions: list[Any], prefills: list[str], **_: Any) -> list[float]:
    """`r1_format` of each completion."""
    return [
        r1_format(completion_text(completion), prefill=prefill)
        for completion, prefill in zip(completions, prefills, strict=True)
    ]


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


def reasoning_gym(*, dataset_source: str, seed: int) -> RewardCall:
    """The task's own score of a completion's final answer, from 0 to 1.

    Each problem is made again from its number, so the scorer gets the same entry that the prompt comes from;
    those of an evaluation name their task. Raises UserError when the task cannot be made.
    """

    @lru_cache(maxsize=2)
    def task_of(url: str) -> Any:
        return make_task(url, seed=seed)

    task_of(dataset_source)

    @lru_cache(maxsize=4096)
    def entry(url: str, index: int) -> dict[str, Any]:
        return make_entry(task_of(url), index)

    def score(text: str, url: str, index: int) -> Any:
        task = task_of(url)
        try:
            return task.score_answer(final_answer(text), entry(url, index))
        except Exception as error:  # some scorers raise when they cannot read an answer
            return Unscorable(f"the scorer of {url} raised {type(error).__name__}: {error}")

    def call(*, completions: list[Any], prefills: list[str], **columns: list[Any]) -> list[Any]:
        numbers = columns[ENTRY_INDEX]
        urls = columns.get(TASK_URL) or [dataset_source] * len(numbers)
        return [
            score(prefill + completion_text(completion), url, number)
            for completion, prefill, url, number in zip(completions, prefills, urls, numbers, strict=True)
        ]

    return call


def returned_by_agents(*, returned: list[float | None], **_: Any) -> list[float | None]:
    """What the agent of each completion returned."""
    return returned


def _math_verify(**options: Any) -> RewardCall:
    from grpo_runtime.rewards.math_answers import math_verify

    return compared(math_verify, reads_prefill=True, **options)


def _is_paid_for_itself(answer: str) -> bool:
    from grpo_runtime.rewards.math_answers import is_paid_for_itself

    return is_paid_for_itself(answer)


BUILTIN_REWARDS: dict[str, Builtin] = {
    "exact_match": Builtin(make=partial(compared, exact_match), options=(_ANSWER,)),
    "char_accuracy": Builtin(make=partial(compared, char_accuracy), options=(_ANSWER,)),
    "regex": Builtin(make=regex, options=("pattern",)),
    "format": Builtin(make=lambda: r1_format_of_all),
    "length": Builtin(make=length, options=("max_tokens", "overlong_tokens")),
    "math_verify": Builtin(make=_math_verify, options=(_ANSWER,), accepts=_is_paid_for_itself),
    "reasoning_gym": Builtin(
        make=reasoning_gym, options=("dataset_source", "seed"), environment=SAME_EVERYWHERE
    ),
    "environment": Builtin(make=lambda: returned_by_agents),
}
"""By `rewards[].builtin`."""


def make_builtin(name: str, *, options: BuiltinOptions) -> RewardCall:
    """The built-in reward `name`, ready to be called.

    Raises UserError when there is none of that name or when one of its options is wrong.
    """
    if name not in BUILTIN_REWARDS:
        raise UserError(f"rewards: there is no built-in reward {name}: use {' or '.join(BUILTIN_REWARDS)}")
    builtin = BUILTIN_REWARDS[name]
    return builtin.make(**{option: getattr(options, option) for option in builtin.options})


def needs_answers(builtins: Iterable[str | None]) -> bool:
    """Whether one of these built-in rewards compares with the answer column; None is another function."""
    return any(name is not None and _ANSWER in BUILTIN_REWARDS[name].options for name in builtins)


def refused_answers(answers: Iterable[str], *, builtins: Iterable[str | None]) -> dict[str, str]:
    """The `answers` that one of these built-in rewards does not accept, each with the reward's name.
    None is another function."""
    checks = {name: BUILTIN_REWARDS[name].accepts for name in builtins if name is not None}
    return {
        answer: name
        for answer in set(answers)
        for name, accepts in checks.items()
        if accepts is not None and not accepts(answer)
    }
