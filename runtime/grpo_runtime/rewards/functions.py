"""Finds a user's reward function and calls reward functions as TRL does. Runs in the worker process."""

import asyncio
import importlib
import importlib.machinery
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from grpo_runtime.errors import UserError
from grpo_runtime.rewards.types import Unscorable


def load_function(path: str) -> Callable[..., Any]:
    """The callable at `module:attribute`. Raises UserError that names the module or attribute that is
    missing."""
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"rewards: function {path} needs module {error.name}, which is not in this image: add it there"
        ) from error
    except Exception as error:
        raise UserError(
            f"rewards: importing module {module_name} failed: {type(error).__name__}: {error}"
        ) from error
    return _function_of(module, attribute, place=f"module {module_name}")


def load_code(path: Path, *, function: str, place: str) -> Callable[..., Any]:
    """The callable `function` of the Python file `path`, which a ConfigMap holds.

    `place` is what error messages call the file. Raises UserError when the file or the function is missing,
    or when the file raises as it is run.
    """
    if not path.is_file():
        names = sorted(entry.name for entry in path.parent.glob("[!.]*")) if path.parent.is_dir() else []
        raise UserError(f"rewards: {place} is not there: the ConfigMap has {', '.join(names) or 'no key'}")
    # the key may have any name, also without .py; the module's name must not be one that code could import
    loader = importlib.machinery.SourceFileLoader("grpo_reward_code", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    try:
        loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"rewards: {place} needs module {error.name}, which is not in this image: add it there"
        ) from error
    except Exception as error:
        raise UserError(f"rewards: running {place} failed: {type(error).__name__}: {error}") from error
    return _function_of(module, function, place=place)


def _function_of(module: ModuleType, attribute: str, *, place: str) -> Callable[..., Any]:
    if not hasattr(module, attribute):
        found = ", ".join(name for name in vars(module) if not name.startswith("_")) or "nothing public"
        raise UserError(f"rewards: {place} has no attribute {attribute}: it has {found}")
    function: Callable[..., Any] = getattr(module, attribute)
    if not callable(function):
        raise UserError(f"rewards: {attribute} of {place} is a {type(function).__name__}, not a function")
    return function


def call_function(
    function: Callable[..., Any], request: dict[str, Any]
) -> tuple[list[Any], dict[str, list[float]]]:
    """What `function` returns for one request, and the values of each metric it logged.

    `request` has the fields of RewardRequest. The function is called by TRL's convention, with the keyword
    arguments prompts, completions, completion_ids, every dataset column by its name, trainer_state
    (global_step, max_steps) and log_metric(name, value), as far as its signature takes them. A completion is
    text, or a list with one assistant message where the prompt is a chat. A coroutine is awaited. Raises what
    the function raises, and TypeError when it does not return a reward for every completion.
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
        "trainer_state": SimpleNamespace(global_step=request["step"], max_steps=request["total_steps"]),
        "log_metric": lambda name, value: logged.setdefault(str(name), []).append(float(value)),
    }
    result = function(**_accepted(function, arguments))
    if inspect.isawaitable(result):
        result = asyncio.run(_awaited(result))
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


def _accepted(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in arguments.items() if name in names}


async def _awaited(result: Any) -> Any:
    return await result
