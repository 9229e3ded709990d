"""Calls reward functions as TRL does. Runs in the worker process."""

import asyncio
import inspect
import math
import re
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from types import SimpleNamespace
from typing import Any

from grpo_runtime.process.user_code import accepted
from grpo_runtime.rewards.types import Unscorable


class MisfitError(TypeError):
    """The function does not fit the run: it takes other arguments, or returns no list with a reward for every
    completion. The message says what it takes or returns, and what to change."""


class NoNumberError(ValueError):
    """A value is of a type that no reward has."""


def call_function(
    function: Callable[..., Any], request: dict[str, Any], *, runner: asyncio.Runner
) -> tuple[list[Any], dict[str, list[float]]]:
    """What `function` returns for one request, and the values of each metric it logged.

    `request` has the fields of RewardRequest. The function is called by TRL's convention, with the keyword
    arguments prompts, completions, completion_ids, every dataset column by its name, trainer_state
    (global_step, max_steps), log_metric(name, value) and log_extra(column, values), and with prefills, which
    TRL does not have, as far as its signature takes them. What is given to log_extra, further columns of a
    table that TRL logs, is not kept. A completion is text, or a list with one assistant message where the
    prompt is a chat. A coroutine is awaited in the loop of `runner`, the same in every call: clients and
    tasks of the function live on there.

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
        "trainer_state": SimpleNamespace(global_step=request["step"], max_steps=request["total_steps"]),
        "log_metric": lambda name, value: logged.setdefault(str(name), []).append(float(value)),
        "log_extra": _keep_no_column,
    }
    taken = accepted(function, arguments)
    try:
        inspect.signature(function).bind(**taken)
    except TypeError as error:
        raise MisfitError(_wrong_signature(function, arguments, columns=request["columns"])) from error
    try:
        result = function(**taken)
        if inspect.isawaitable(result):
            result = runner.run(_awaited(result))
    except KeyError as error:
        if _is_missing_argument(error, function, arguments):
            raise MisfitError(_missing([error.args[0]], arguments, columns=request["columns"])) from error
        raise
    return _reward_list(result, num_completions=len(request["completions"])), logged


def _wrong_signature(
    function: Callable[..., Any], arguments: Mapping[str, Any], *, columns: Mapping[str, Any]
) -> str:
    """Why `function` cannot be called with `arguments`."""
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in variadic
        and parameter.name not in arguments
    ]
    if "solution_str" in missing:
        return _like_verl(function, columns=columns)
    if missing:
        return _missing(missing, arguments, columns=columns)
    signature = inspect.signature(function)
    return f"its signature is {signature}, and it is called with keyword arguments: remove the / from it"


def _missing(names: Sequence[str], arguments: Mapping[str, Any], *, columns: Mapping[str, Any]) -> str:
    own = [name for name in arguments if name not in columns]
    return (
        f"it needs {' and '.join(names)}, which no call has: it can have {', '.join(own)}, and as columns of "
        f"the data {', '.join(columns) or 'none'}: name one of these, or give the parameter a default"
    )


def _like_verl(function: Callable[..., Any], *, columns: Mapping[str, Any]) -> str:
    """What to do with verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`."""
    name = getattr(function, "__name__", "compute_score")
    return (
        "it has the arguments of verl's compute_score, which scores one completion, and a function here gets "
        "lists, as TRL's do: name one that calls it for each, such as `def reward(completions, answer, **_): "
        f'return [{name}("", text, right, {{}}) for text, right in zip(completions, answer)]`, with a column '
        f"of the data in place of answer (there are {', '.join(columns) or 'none'}), and "
        f'text[0]["content"] in place of text where prompts are chats'
    )


def _is_missing_argument(error: KeyError, function: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
    """Whether `error` comes of a line such as `others["solution"]`, where `others` are the further keyword
    arguments of `function`. Any other KeyError is of its own data."""
    parameters = inspect.signature(function).parameters.values()
    others = [one.name for one in parameters if one.kind is inspect.Parameter.VAR_KEYWORD]
    key = error.args[0] if error.args else None
    if not others or not isinstance(key, str) or key in arguments:
        return False
    line = traceback.extract_tb(error.__traceback__)[-1].line or ""
    return re.search(rf"\b{others[0]}(\[|\.pop\()\s*['\"]{re.escape(key)}['\"]", line) is not None


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
    try:
        number = float(value)
    except Exception as error:
        # the user's object may have a __float__ that raises anything
        raise NoNumberError(f"a reward is a {type(value).__name__}, not a number") from error
    if abs(number) > _FLOAT32_MAX:
        raise ValueError("a reward is infinite, or too large for float32")
    return None if math.isnan(number) else number


def _keep_no_column(column: str, values: list[Any]) -> None:
    """TRL's log_extra, for functions that call it: the tables of completions have the same columns in every
    job."""


async def _awaited(result: Any) -> Any:
    return await result
