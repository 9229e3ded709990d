"""Calls reward functions as TRL does. Runs in the worker process."""

import asyncio
import functools
import inspect
import math
import reprlib
from collections.abc import Callable, Mapping, Set
from types import SimpleNamespace
from typing import Any

from grpo_runtime.process.user_code import accepted
from grpo_runtime.rewards.misfit import misfit_of, wrong_signature
from grpo_runtime.rewards.types import Unscorable


class MisfitError(TypeError):
    """The function does not fit the run: it takes other arguments, or completions of another form, or returns
    no list with a reward for every completion. The message says what it takes or returns, and what to
    change."""


class NoNumberError(ValueError):
    """A value is of a type that no reward has."""


def call_function(
    function: Callable[..., Any], request: dict[str, Any], *, runner: asyncio.Runner
) -> tuple[list[Any], dict[str, list[float]]]:
    """What `function` returns for one request, and the values of each metric it logged.

    `request` has the fields of RewardRequest. The function is called by TRL's convention, with the keyword
    arguments prompts, completions, completion_ids, every dataset column by its name, trainer_state
    (global_step, max_steps), log_metric(name, value) and log_extra(column, values), and with prefills,
    returned and trajectories, which TRL does not have, as far as its signature takes them. What is given to
    log_extra, further columns of a table that TRL logs, is not kept. A completion is text, or a list with one
    assistant message where the prompt is a chat. A coroutine is awaited in the loop of `runner`, the same in
    every call: clients and tasks of the function live on there.

    Raises what the function raises, and MisfitError.
    """
    logged: dict[str, list[float]] = {}
    arguments = {
        **request["columns"],
        "prompts": request["prompts"],
        "completions": [
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for prompt, text in zip(request["prompts"], request["completions"], strict=True)
        ],
        "completion_ids": request["completion_ids"],
        "prefills": request["prefills"] or [""] * len(request["completions"]),
        "returned": request["returned"] or [None] * len(request["completions"]),
        "trajectories": request["trajectories"] or [None] * len(request["completions"]),
        "trainer_state": SimpleNamespace(global_step=request["step"], max_steps=request["total_steps"]),
        "log_metric": functools.partial(_log_metric, logged),
        "log_extra": _keep_no_column,
    }
    taken = accepted(function, arguments)
    try:
        inspect.signature(function).bind(**taken)
    except TypeError as error:
        raise MisfitError(wrong_signature(function, arguments, columns=request["columns"])) from error
    try:
        result = function(**taken)
        if inspect.isawaitable(result):
            result = runner.run(_awaited(result))
    except (KeyError, TypeError, AttributeError) as error:
        if sentence := misfit_of(error, function, arguments, columns=request["columns"]):
            raise MisfitError(sentence) from error
        raise
    return _reward_list(result, num_completions=len(request["completions"])), logged


def _reward_list(result: Any, *, num_completions: int) -> list[Any]:
    """What a function returned, one by one. Raises MisfitError when that is no list of `num_completions`."""
    wanted = "return a list with one number for each completion, or None for one that has no reward"
    try:
        values = None if isinstance(result, str | bytes | Mapping | Set) else iter(result)
    except TypeError:
        values = None
    if values is None:
        what = "None" if result is None else f"a {type(result).__name__}"
        raise MisfitError(f"it returned {what} for {num_completions} completions: {wanted}")
    rewards = list(values)
    if len(rewards) != num_completions:
        raise MisfitError(f"it returned {len(rewards)} rewards for {num_completions} completions: {wanted}")
    return rewards


_FLOAT32_MAX = 3.4028234663852886e38
_TOO_LARGE = "a reward is infinite, or too large for float32"


def clean_reward(value: Any) -> float | None:
    """One returned value as a finite float, or None for "does not apply" (None and NaN, as in TRL).

    Accepts what float() accepts, except text. Raises NoNumberError with the reason for anything else, and
    ValueError for infinities and for what could not be scored.
    """
    if value is None:
        return None
    if isinstance(value, Unscorable):
        raise ValueError(value.reason)
    if isinstance(value, str | bytes):
        raise NoNumberError(f"a reward is {value!r}, which is text")
    if inspect.isawaitable(value):
        raise NoNumberError(
            f"a reward is a {type(value).__name__}, not a number: await it in an async function"
        )
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(_TOO_LARGE) from error
    except Exception as error:
        # the user's object may have a __float__ that raises anything
        raise NoNumberError(f"a reward is a {type(value).__name__}, not a number") from error
    if abs(number) > _FLOAT32_MAX:
        raise ValueError(_TOO_LARGE)
    return None if math.isnan(number) else number


def _log_metric(logged: dict[str, list[float]], name: str, value: Any) -> None:
    """TRL's log_metric."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"log_metric: the value of {name} is {reprlib.repr(value)}, not a number: give it a number, "
            "or leave the call out where there is none"
        ) from error
    logged.setdefault(str(name), []).append(number)


def _keep_no_column(column: str, values: list[Any]) -> None:
    """TRL's log_extra, for functions that call it: the tables of completions have the same columns in every
    job."""


async def _awaited(result: Any) -> Any:
    return await result
