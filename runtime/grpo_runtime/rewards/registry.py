"""Every built-in reward by its name; there is no other list of them.

To add one, write its function and add a row here. `grpo_api.v1alpha1.spec.BuiltinReward` has the same names,
and a test compares them. A row names the options of the job that its function needs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_runtime.data.reasoning_gym import SAME_EVERYWHERE
from grpo_runtime.errors import UserError
from grpo_runtime.rewards.builtin import (
    char_accuracy,
    compared,
    exact_match,
    length,
    r1_format_of_all,
    regex,
)
from grpo_runtime.rewards.types import BuiltinOptions, RewardCall


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


def _exact_match(**options: Any) -> RewardCall:
    return compared(exact_match, **options)


def _char_accuracy(**options: Any) -> RewardCall:
    return compared(char_accuracy, **options)


def _format() -> RewardCall:
    return r1_format_of_all


def _math_verify(**options: Any) -> RewardCall:
    from grpo_runtime.rewards.math_answers import math_verify

    return compared(math_verify, reads_prefill=True, **options)


def _is_paid_for_itself(answer: str) -> bool:
    from grpo_runtime.rewards.math_answers import is_paid_for_itself

    return is_paid_for_itself(answer)


def _reasoning_gym(**options: Any) -> RewardCall:
    from grpo_runtime.rewards.puzzles import reasoning_gym

    return reasoning_gym(**options)


_ANSWER = "answer_column"

BUILTIN_REWARDS: dict[str, Builtin] = {
    "exact_match": Builtin(make=_exact_match, options=(_ANSWER,)),
    "char_accuracy": Builtin(make=_char_accuracy, options=(_ANSWER,)),
    "regex": Builtin(make=regex, options=("pattern",)),
    "format": Builtin(make=_format),
    "length": Builtin(make=length, options=("max_tokens", "overlong_tokens")),
    "math_verify": Builtin(make=_math_verify, options=(_ANSWER,), accepts=_is_paid_for_itself),
    "reasoning_gym": Builtin(
        make=_reasoning_gym, options=("dataset_source", "seed"), environment=SAME_EVERYWHERE
    ),
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
    """Those of `answers` that one of these built-in rewards does not accept, each with the reward's name.
    None is another function."""
    checks = {name: BUILTIN_REWARDS[name].accepts for name in builtins if name is not None}
    return {
        answer: name
        for answer in set(answers)
        for name, accepts in checks.items()
        if accepts is not None and not accepts(answer)
    }
