"""A built-in reward says in its row which answers it can give 1 to."""

import pytest

from grpo_runtime.rewards.builtin import exact_match
from grpo_runtime.rewards.registry import BUILTIN_REWARDS, Builtin, refused_answers


def test_a_row_that_names_its_check_refuses_answers_by_the_name_of_the_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = Builtin(make=lambda: exact_match, accepts=str.isdigit)
    monkeypatch.setitem(BUILTIN_REWARDS, "digits", row)
    assert refused_answers(["1", "one", "2"], builtins=[None, "digits"]) == {"one": "digits"}


def test_rewards_without_a_check_refuse_no_answer() -> None:
    assert refused_answers(["", "}"], builtins=["exact_match", "length", None]) == {}


def test_an_answer_that_is_there_many_times_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    row = Builtin(make=lambda: exact_match, accepts=lambda answer: bool(checked.append(answer)))
    monkeypatch.setitem(BUILTIN_REWARDS, "never", row)
    assert refused_answers(["1", "1", "2", "1"], builtins=["never"]) == {"1": "never", "2": "never"}
    assert sorted(checked) == ["1", "2"]
