"""The worker process: one reward function, requests in and rewards out as JSON lines over its pipes.

It is started as `python -m grpo_runtime.rewards.worker CONFIG PARENT`. CONFIG is what
`worker_group.worker_config` writes, and PARENT is the process that starts it: the worker ends when that one
does. Its first line says whether it found the function; after that it answers every line with one line.

It has one event loop. A function that is no coroutine is called outside of it, in the main thread, and may
run a loop of its own.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

from grpo_runtime.process.line_pipes import announce, failure, private_pipes, send
from grpo_runtime.process.parent_death import die_with
from grpo_runtime.rewards.functions import MisfitError, NoNumberError, call_function, clean_reward
from grpo_runtime.rewards.kinds import REWARD_KINDS


def main(arguments: list[str]) -> int:
    """Serve until the requests end; returns the exit code."""
    written_config, parent_pid = arguments
    die_with(int(parent_pid))
    config = json.loads(written_config)
    # the loop comes before the user's module, which may begin a task as it is imported
    with asyncio.Runner() as runner:
        requests, replies = runner.run(private_pipes())
        function = announce(replies, lambda: _function(config))
        if function is None:
            return 1
        while line := runner.run(requests.readline()):
            send(replies, _reply(function, json.loads(line), runner=runner))
    return 0


def _function(config: dict[str, Any]) -> Callable[..., Any]:
    kind = REWARD_KINDS[config["kind"]]
    assert kind.load is not None  # others have no workers
    return kind.load(TypeAdapter(kind.source).validate_python(config["source"]))


def _reply(
    function: Callable[..., Any], request: dict[str, Any], *, runner: asyncio.Runner
) -> dict[str, Any]:
    """The reply to one request. An exception of the user's code becomes a reply too, and so does the
    cancellation of what it awaits."""
    try:
        rewards, metrics = call_function(function, request, runner=runner)
    except MisfitError as error:
        return {"error": str(error), "traceback": "", "is_misfit": True}
    except (Exception, asyncio.CancelledError) as error:
        return failure(error, trace=traceback.format_exc()) | {"is_misfit": False}
    values, refused, is_misfit = [], [], False
    for index, reward in enumerate(rewards):
        try:
            values.append(clean_reward(reward))
        except ValueError as error:
            values.append(None)
            refused.append([index, str(error)])
            is_misfit |= isinstance(error, NoNumberError)
    return {"rewards": values, "refused": refused, "metrics": metrics, "is_misfit": is_misfit}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
