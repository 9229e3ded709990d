"""A new built-in reward is a function and a row in the registry that names the options it needs."""

import asyncio
from typing import Any

import pytest

from grpo_runtime.errors import UserError
from grpo_runtime.rewards.functions import call_function
from grpo_runtime.rewards.registry import BUILTIN_REWARDS, Builtin, make_builtin, needs_answers
from grpo_runtime.rewards.types import BuiltinOptions, RewardCall


def shortness(*, max_tokens: int) -> RewardCall:
    """1 for an empty completion, 0 for one of `max_tokens`."""

    def call(*, completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [1 - len(ids) / max_tokens for ids in completion_ids]

    return call


def test_a_reward_that_is_a_function_and_a_row_scores_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILTIN_REWARDS, "shortness", Builtin(make=shortness, options=("max_tokens",)))
    function = make_builtin("shortness", options=BuiltinOptions(max_tokens=4, pattern="not for this one"))
    request = {
        "prompts": ["a=", "b="],
        "completions": ["x", "xxxx"],
        "completion_ids": [[1], [1, 1, 1, 1]],
        "prefills": [],
        "columns": {"answer": ["x", "y"]},
        "step": 0,
        "total_steps": 1,
    }
    with asyncio.Runner() as runner:
        assert call_function(function, request, runner=runner) == ([0.75, 0.0], {})
    assert not needs_answers(["shortness"])


def test_a_name_that_is_in_no_row_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UserError, match=r"no built-in reward exact: use exact_match or char_accuracy or"):
        make_builtin("exact", options=BuiltinOptions())


@pytest.mark.parametrize(
    ("builtins", "expected"),
    [
        (["exact_match"], True),
        (["format", "math_verify"], True),
        (["format", "length", "regex", "reasoning_gym"], False),
        ([None], False),
        ([None, "char_accuracy"], True),
    ],
)
def test_answers_are_needed_when_one_of_the_rewards_compares_with_them(
    builtins: list[str | None], expected: bool
) -> None:
    assert needs_answers(builtins) is expected
