"""How reward functions are called. A new built-in one is a function and a row in the registry that names the
options it needs."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from grpo_runtime.errors import UserError
from grpo_runtime.rewards.functions import MisfitError, call_function
from grpo_runtime.rewards.registry import BUILTIN_REWARDS, Builtin, make_builtin, needs_answers
from grpo_runtime.rewards.types import BuiltinOptions, RewardCall

REQUEST: dict[str, Any] = {
    "prompts": ["a=", "b="],
    "completions": ["x", "xxxx"],
    "completion_ids": [[1], [1, 1, 1, 1]],
    "prefills": [],
    "columns": {"answer": ["x", "y"]},
    "step": 0,
    "total_steps": 1,
}


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


def takes_it_out(completions: list[str], **others: Any) -> Any:
    return others.pop("solution")


async def awaits_and_reads_it(completions: list[str], **others: Any) -> Any:
    await asyncio.sleep(0)
    return others["solution"]


def by_position(completions: list[str], /) -> list[float]:
    return [0.0] * len(completions)


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return 0.0


def reads_a_key_of_its_own(completions: list[str], **others: Any) -> Any:
    rewards = {"others": others}
    return rewards["solution"]


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (
            takes_it_out,
            "it needs solution, which no call has: it can have prompts, completions, completion_ids, "
            "prefills, trainer_state, log_metric, log_extra, and as columns of the data answer: name one of "
            "these, or give the parameter a default",
        ),
        (awaits_and_reads_it, "it needs solution, which no call has"),
        (by_position, "its signature is (completions: list[str], /) -> list[float], and it is called with"),
        (
            compute_score,
            'return [compute_score("", text, right, {}) for text, right in zip(completions, answer)',
        ),
    ],
)
def test_a_function_that_wants_other_arguments_is_told_which_there_are(
    function: Callable[..., Any], sentence: str
) -> None:
    with asyncio.Runner() as runner, pytest.raises(MisfitError) as refusal:
        call_function(function, REQUEST, runner=runner)
    assert sentence in str(refusal.value)


def test_a_key_error_of_a_functions_own_data_is_its_own() -> None:
    with asyncio.Runner() as runner, pytest.raises(KeyError):
        call_function(reads_a_key_of_its_own, REQUEST, runner=runner)


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
