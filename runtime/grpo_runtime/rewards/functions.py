"""Calls reward functions as TRL does. Runs in the worker process."""

import asyncio
import inspect
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from grpo_runtime.process.user_code import accepted
from grpo_runtime.rewards.types import Unscorable


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
    result = function(**accepted(function, arguments))
    if inspect.isawaitable(result):
        result = runner.run(_awaited(result))
    rewards = list(result)
    if len(rewards) != len(request["completions"]):
        raise TypeError(f"it returned {len(rewards)} rewards for {len(request['completions'])} completions")
    return rewards, logged


_FLOAT32_MAX = 3.4028234663852886e38


def clean_reward(value: Any) -> float | None:
    """One returned value as a finite float, or None for "does not apply" (None and NaN, as in TRL).

    Accepts what float() accepts, except text. Raises ValueError with the reason for anything else and for
    infinities.
    """
    if value is None:
        return None
    if isinstance(value, Unscorable):
        raise ValueError(value.reason)
    if isinstance(value, str | bytes):
        raise ValueError(f"a reward is {value!r}, which is text")
    try:
        number = float(value)
    except Exception as error:
        # the user's object may have a __float__ that raises anything
        raise ValueError(f"a reward is a {type(value).__name__}, not a number") from error
    if abs(number) > _FLOAT32_MAX:
        raise ValueError("a reward is infinite, or too large for float32")
    return None if math.isnan(number) else number


def _keep_no_column(column: str, values: list[Any]) -> None:
    """TRL's log_extra, for functions that call it: the tables of completions have the same columns in every
    job."""


async def _awaited(result: Any) -> Any:
    return await result
