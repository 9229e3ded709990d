"""How reward functions are called. A new built-in one is a function and a row in the registry that names the
options it needs."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from reward_examples import REQUEST

from grpo_runtime.errors import UserError
from grpo_runtime.rewards.builtin import BUILTIN_REWARDS, Builtin, make_builtin, needs_answers
from grpo_runtime.rewards.functions import NoNumberError, call_function, clean_reward
from grpo_runtime.rewards.types import OWN_ARGUMENTS, BuiltinOptions, RewardCall


def shortness(*, max_tokens: int) -> RewardCall:
    """1 for an empty completion, 0 for one of `max_tokens`."""

    def call(*, completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [1 - len(ids) / max_tokens for ids in completion_ids]

    return call


def test_a_reward_that_is_a_function_and_a_row_scores_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILTIN_REWARDS, "shortness", Builtin(make=shortness, options=("max_tokens",)))
    function = make_builtin("shortness", options=BuiltinOptions(max_tokens=4, pattern="not for this one"))
    with asyncio.Runner() as runner:
        assert call_function(function, REQUEST, runner=runner) == ([0.75, 0.0], {})
    assert not needs_answers(["shortness"])


def test_every_argument_of_the_run_is_one_that_hides_a_column() -> None:
    seen: set[str] = set()

    def function(completions: list[str], **others: Any) -> list[float]:
        seen.update(others)
        return [0.0] * len(completions)

    with asyncio.Runner() as runner:
        call_function(function, REQUEST, runner=runner)
    assert seen | {"completions"} == OWN_ARGUMENTS | {"answer"}


@pytest.mark.parametrize("value", [None, [1.0], {"acc": 1.0}, 10**400])
def test_a_metric_that_is_no_number_is_named(value: Any) -> None:
    def function(completions: list[str], log_metric: Callable[..., None]) -> None:
        log_metric("acc", value)

    with (
        asyncio.Runner() as runner,
        pytest.raises(TypeError, match=r"^log_metric: the value of acc is .*, not a"),
    ):
        call_function(function, REQUEST, runner=runner)


async def later() -> float:
    return 1.0


def test_a_reward_that_is_not_awaited_is_told_so() -> None:
    coroutine = later()
    with pytest.raises(NoNumberError, match=r"^a reward is a coroutine, not a number: await it in an async"):
        clean_reward(coroutine)
    coroutine.close()


def test_a_whole_number_beyond_every_float_is_too_large() -> None:
    with pytest.raises(ValueError, match="too large for float32") as refusal:
        clean_reward(10**400)
    assert not isinstance(refusal.value, NoNumberError)


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
