"""The worker process: one reward function, requests in and rewards out as JSON lines over its pipes.

It is started as `python -m grpo_runtime.rewards.worker CONFIG PARENT`. CONFIG is what `process.worker_config`
writes, and PARENT is the process that starts it: the worker ends when that one does. Its first line says
whether it found the function; after that it answers every line with one line. The function may print and
read: its stdout is the worker's stderr, and its stdin is empty.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from grpo_runtime.errors import UserError
from grpo_runtime.process.parent_death import die_with
from grpo_runtime.rewards.functions import (
    call_function,
    clean_reward,
    load_code,
    load_function,
)
from grpo_runtime.rewards.registry import make_builtin
from grpo_runtime.rewards.types import MAX_REASON_CHARACTERS, BuiltinOptions, RewardModel


def main(arguments: list[str]) -> int:
    """Serve until the requests end; returns the exit code."""
    written_config, parent_pid = arguments
    die_with(int(parent_pid))
    requests, replies = _private_pipes()
    config = json.loads(written_config)
    try:
        function = _function(config)
    except UserError as error:
        _send(replies, {"user_error": str(error)})
        return 1
    _send(replies, {"ready": True})
    for line in requests:
        _send(replies, _reply(function, json.loads(line)))
    return 0


def _private_pipes() -> tuple[TextIO, TextIO]:
    """Move the protocol's pipes away from file descriptors 0 and 1, which any library may use."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


def _function(config: dict[str, Any]) -> Callable[..., Any]:
    if config["builtin"] is not None:
        return make_builtin(config["builtin"], options=BuiltinOptions(**config["options"]))
    if config["code"] is not None:
        code = config["code"]
        return load_code(Path(code["path"]), function=code["function"], place=code["place"])
    if config["model"] is not None:
        from grpo_runtime.rewards.classifier import load_classifier

        return load_classifier(RewardModel(**config["model"] | {"folder": Path(config["model"]["folder"])}))
    return load_function(config["function"])


def _reply(function: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request. An exception of the user's code becomes a reply too."""
    try:
        rewards, metrics = call_function(function, request)
    except Exception as error:
        sentence = f"{type(error).__name__}: {error}"[:MAX_REASON_CHARACTERS]
        return {"error": sentence, "traceback": traceback.format_exc()[-MAX_REASON_CHARACTERS:]}
    values, refused = [], []
    for index, reward in enumerate(rewards):
        try:
            values.append(clean_reward(reward))
        except ValueError as error:
            values.append(None)
            refused.append([index, str(error)])
    return {"rewards": values, "refused": refused, "metrics": metrics}


def _send(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
