"""A `reasoning-gym://` dataset: its rows, and its task of that library with the settings of the URL.

The rows are made in a process of their own, `python -m grpo_runtime.data.reasoning_gym URL SEED`, which
prints a line of JSON each. Every process that makes problems runs with the environment SAME_EVERYWHERE.
"""

import collections.abc
import dataclasses
import difflib
import enum
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from grpo_api.source import parse_source
from grpo_runtime.errors import UserError

DEFAULT_SIZE = 1000
"""How many problems a task makes when its URL names no `size`."""
ENTRY_INDEX = "entry_index"
"""Column with the number of a problem in its task. The scorer makes the same problem from it again."""
TASK_URL = "task_url"
"""Column of the problems of an evaluation: the URL of their task with its seed, by which the scorer tells
them from those of training."""
_EVALUATION_SEEDS = 1_000_000_000
"""How much the seed of an evaluation is above that of training. Problem i of a task is made from the sum of
its seed and i, so seeds that are near to each other have problems in common."""
SAME_EVERYWHERE = {"PYTHONHASHSEED": "0"}
"""Environment of every process that makes problems: without it sets have a random order, and some tasks draw
from sets."""
NEEDED_BY_ONE_TASK = {"zebra_puzzles": "pycosat"}
"""Tasks that need a library which the image may lack; see requirements.overrides.txt."""
_STAND_INS = (
    "matplotlib",
    "matplotlib.animation",
    "matplotlib.collections",
    "matplotlib.pyplot",
    "mpl_toolkits",
    "mpl_toolkits.mplot3d",
    "pycosat",
)


def without_day(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row without those that depend on the day: a problem's `metadata`.

    The task time_intervals writes today's date there; its question and answer do not depend on it. Rows of
    other datasets are returned as they are.
    """
    if ENTRY_INDEX not in columns:
        return columns
    return {name: value for name, value in columns.items() if name != "metadata"}


def evaluated_url(url: str, *, seed: int) -> str:
    """The URL of a task that a run with this seed is evaluated on: with a seed of its own, unless it names
    one."""
    if any(name == "seed" for name, _ in parse_source(url).settings):
        return url
    return f"{url}{'&' if '?' in url else '?'}seed={seed + _EVALUATION_SEEDS}"


def read_reasoning_gym(url: str, *, seed: int) -> list[dict[str, Any]]:
    """The problems of the task named by `url`: columns prompt, answer, metadata and `entry_index`.

    They are the same on every machine for the same URL and seed, and are made in a process of their own.
    Raises UserError for an unknown task or setting, and ChildProcessError when that process is killed, which
    a retry may cure.
    """
    made = subprocess.run(
        [sys.executable, "-m", "grpo_runtime.data.reasoning_gym", url, str(seed)],
        env=os.environ | SAME_EVERYWHERE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    if made.returncode < 0:
        # checked before its output is read, which may end in the middle of a line
        name = signal.Signals(-made.returncode).name
        raise ChildProcessError(
            f"the process that makes the problems of dataset.source ({url}) was killed by {name}"
            + (": most likely the container's memory was used up" if name == "SIGKILL" else "")
        )
    lines = [json.loads(line) for line in made.stdout.splitlines()]
    if lines and "user_error" in lines[-1]:
        raise UserError(lines[-1]["user_error"])
    if made.returncode != 0:
        raise UserError(
            f"dataset.source ({url}): making its problems ended with code {made.returncode}; see the log"
        )
    return lines


def make_task(url: str, *, seed: int) -> Any:
    """The task's ProceduralDataset, with `seed` unless the URL names another.

    Raises UserError for an unknown task or setting, for a value of the wrong type, and when the task itself
    refuses its settings.
    """
    make, name = _maker(url, seed=seed), parse_source(url).name
    if library := _lacking(name):
        raise UserError(
            f"dataset.source ({url}): the task {name} needs the library {library}, which this image lacks: "
            "install it in an image of your own, or take another task"
        )
    return make()


def require_task(url: str, *, seed: int) -> None:
    """Raises UserError as `make_task`, but lets a task pass whose own library only the image may have."""
    make = _maker(url, seed=seed)
    if _lacking(parse_source(url).name) is None:
        make()


def _lacking(name: str) -> str | None:
    """The library that a task needs and that is not installed."""
    library = NEEDED_BY_ONE_TASK.get(name)
    return library if library and importlib.util.find_spec(library) is None else None


def _maker(url: str, *, seed: int) -> Callable[[], Any]:
    """What makes the task named by `url`, whose name and settings are checked here."""
    source = parse_source(url)
    tasks = _tasks()
    name = source.name
    if name not in tasks:
        raise UserError(f"dataset.source ({url}): reasoning-gym has no task {name}{_near(name, tasks)}")
    task, config = tasks[name]
    settings = {"seed": seed, "size": DEFAULT_SIZE} | _settings(dict(source.settings), config, url=url)
    if settings["seed"] is None:
        raise UserError(f"dataset.source ({url}): seed= must be a whole number, or leave seed out")
    return lambda: _configured(task, config, settings, url=url)


def _configured(task: Any, config: Any, settings: Mapping[str, Any], *, url: str) -> Any:
    try:
        return task(config=config(**settings))
    except (AssertionError, ValueError, TypeError) as error:
        raise UserError(f"dataset.source ({url}): reasoning-gym refuses these settings: {error}") from error


def make_entry(task: Any, index: int) -> dict[str, Any]:
    """Problem `index` of `task`: the same in every process, also when other problems were made before.

    Some tasks also draw from Python's global generator, which is therefore seeded with (seed, index) here.
    Tasks that draw from numpy's generator seed it themselves.
    """
    random.seed(f"{task.seed} {index}")
    entry: dict[str, Any] = task[index]
    return entry


def _tasks() -> Mapping[str, tuple[Any, Any]]:
    """Every task by name: its class, and the class of its configuration."""
    missing = [name for name in _STAND_INS if importlib.util.find_spec(name.partition(".")[0]) is None]
    for name in missing:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__["Axes3D"] = None
    try:
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError as error:
        raise UserError(
            f"dataset.source is a reasoning-gym:// URL but {error.name} is not installed: "
            "install grpo-runtime[reasoning-gym]"
        ) from error
    finally:
        # only the import needs these empty modules, and nothing else may find them
        for name in missing:
            del sys.modules[name]
    tasks: Mapping[str, tuple[Any, Any]] = DATASETS
    return tasks


def _settings(given: Mapping[str, str], config: Any, *, url: str) -> dict[str, Any]:
    hints = typing.get_type_hints(config)
    known = [field.name for field in dataclasses.fields(config) if field.init]
    settings = {}
    for name, text in given.items():
        if name not in known:
            raise UserError(f"dataset.source ({url}): the task has no setting {name}{_near(name, known)}")
        try:
            settings[name] = typed(text, hints[name])
        except ValueError as error:
            raise UserError(f"dataset.source ({url}): {name}={text} {error}") from error
    return settings


def typed(text: str, hint: Any) -> Any:
    """`text` as a value of the type `hint`; lists have commas between their items.

    Raises ValueError that says what the text has to be.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [argument for argument in arguments if argument is not type(None)]
        return _first(text, kinds) if text or len(kinds) == len(arguments) else None
    container = origin or hint
    if container in (list, tuple, set, collections.abc.Sequence):
        items = [typed(item.strip(), arguments[0] if arguments else str) for item in text.split(",") if item]
        return items if container is collections.abc.Sequence else container(items)
    if (choices := _choices(hint)) is not None:
        return _chosen(text, choices)
    return text if hint in (str, Any) else _number(text, hint)


def _choices(hint: Any) -> Mapping[str, Any] | None:
    """Texts and values of a type that has only a few values; None for other types."""
    if hint is bool:
        return {"true": True, "false": False}
    if typing.get_origin(hint) is typing.Literal:
        return {str(value): value for value in typing.get_args(hint)}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {str(member.value): member for member in hint}
    return None


def _first(text: str, hints: list[Any]) -> Any:
    refusals = []
    for hint in hints:
        try:
            return typed(text, hint)
        except ValueError as error:
            refusals.append(str(error))
    raise ValueError(" and ".join(refusals))


def _number(text: str, kind: Any) -> float:
    if kind not in (int, float):
        raise ValueError("cannot be set in a URL")
    try:
        return float(text) if kind is float else int(text)
    except ValueError:
        raise ValueError(f"must be {'a whole number' if kind is int else 'a number'}") from None


def _chosen(text: str, choices: Mapping[str, Any]) -> Any:
    if text not in choices:
        raise ValueError(f"must be one of {', '.join(choices)}")
    return choices[text]


def _near(name: str, names: typing.Iterable[str]) -> str:
    """The end of a message: the names most like `name`, or all names when none is like it."""
    near = difflib.get_close_matches(name, list(names), n=5)
    return f": did you mean {' or '.join(near)}?" if near else f": there are {', '.join(sorted(names))}"


def main(arguments: list[str]) -> int:
    """Print every problem; returns the exit code."""
    # file descriptor 1 goes to stderr, because a task may print too
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    url, seed = arguments
    try:
        task = make_task(url, seed=int(seed))
        for index in range(len(task)):
            entry = make_entry(task, index)
            row = {"prompt": entry["question"], "answer": entry["answer"], "metadata": entry["metadata"]}
            print(json.dumps(row | {ENTRY_INDEX: index}), file=out)
    except UserError as error:
        print(json.dumps({"user_error": str(error)}), file=out)
        return 1
    finally:
        out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
