"""Functions that do not fit a run are told what there is and what to change."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from reward_examples import REQUEST

from grpo_runtime.rewards.functions import MisfitError, call_function


def takes_it_out(completions: list[str], **others: Any) -> Any:
    return others.pop("solution")


async def awaits_and_reads_it(completions: list[str], **others: Any) -> Any:
    await asyncio.sleep(0)
    return others["solution"]


def by_position(completions: list[str], /) -> list[float]:
    return [0.0] * len(completions)


def by_a_list_of_positions(*completions: list[str]) -> list[float]:
    return [0.0] * len(completions)


def of_one(completion: str, answer: str) -> float:
    return 0.0


def of_a_batch(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
    return [0.0] * len(solution_strs)


def measures_a_column(completions: list[str], **others: Any) -> Any:
    right = others.get("solution")
    return [float(text == one) for text, one in zip(completions, right, strict=True)]


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
            "prefills, returned, trajectories, trainer_state, log_metric, log_extra, and as columns of the "
            "data answer: name one of these, or give the parameter a default",
        ),
        (awaits_and_reads_it, "it needs solution, which no call has"),
        (by_position, "its signature is (completions: list[str], /) -> list[float], and it is called with"),
        (by_a_list_of_positions, "is called with keyword arguments: remove the * from it"),
        (
            of_one,
            "a function gets lists, all completions of a prompt in completions, and returns a list; it can",
        ),
        (
            of_a_batch,
            'return of_a_batch([""] * len(completions), [text for text in completions], answer, [{}] * len',
        ),
        (measures_a_column, "'NoneType' object is not iterable, and it needs solution, which no call has"),
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


def reads_a_message(completions: Any, **_: Any) -> list[float]:
    return [float(len(completions[0][0]["content"]))] * len(completions)


def reads_an_attribute(completions: Any, **_: Any) -> list[float]:
    return [float(len(one.content)) for one in completions]


def reads_texts(completions: Any, **_: Any) -> list[float]:
    return [float(re.search("x", one) is not None) for one in completions]


def joins_texts(completions: Any, **_: Any) -> list[float]:
    return [float(len(one + "x")) for one in completions]


_CHATS = REQUEST | {"prompts": [[{"role": "user", "content": "a="}]] * 2}
_TEXT = "a completion is a text, because prompts are texts; columns of the data are answer"
_CHAT = 'a completion is a list with one message, whose text is completion[0]["content"], because prompts are'


@pytest.mark.parametrize(
    ("function", "request_of", "error", "form"),
    [
        (reads_a_message, REQUEST, "TypeError: string indices must be integers", _TEXT),
        (reads_an_attribute, REQUEST, "AttributeError: 'str' object has no attribute 'content'", _TEXT),
        (reads_an_attribute, _CHATS, "AttributeError: 'list' object has no attribute 'content'", _CHAT),
        (reads_texts, _CHATS, "TypeError: expected string or bytes-like object, got 'list'", _CHAT),
        (joins_texts, _CHATS, "TypeError: can only concatenate list", _CHAT),
    ],
)
def test_a_function_for_completions_of_the_other_form_is_told_the_form(
    function: Callable[..., Any], request_of: dict[str, Any], error: str, form: str
) -> None:
    with asyncio.Runner() as runner, pytest.raises(MisfitError) as refusal:
        call_function(function, request_of, runner=runner)
    assert f"it raised {error}" in str(refusal.value)
    assert form in str(refusal.value)


def reads_what_is_not_found(completions: list[str], **_: Any) -> list[float]:
    return [float(re.search("y", one).group()) for one in completions]  # type: ignore[union-attr]


def reads_json(completions: list[str], **others: Any) -> list[float]:
    return [json.loads("1")["x"] for _ in completions if others.get("solution") is None]


@pytest.mark.parametrize("function", [reads_what_is_not_found, reads_json])
def test_an_error_that_may_be_of_a_completions_text_is_the_functions_own(
    function: Callable[..., Any],
) -> None:
    with asyncio.Runner() as runner, pytest.raises((TypeError, AttributeError)) as refusal:
        call_function(function, REQUEST, runner=runner)
    assert not isinstance(refusal.value, MisfitError)


def test_a_key_error_of_a_functions_own_data_is_its_own() -> None:
    with asyncio.Runner() as runner, pytest.raises(KeyError):
        call_function(reads_a_key_of_its_own, REQUEST, runner=runner)
