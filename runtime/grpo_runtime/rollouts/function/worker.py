"""The process that runs the user's rollout function: rounds in and out as JSON lines over its pipes.

It is started as `python -m grpo_runtime.rollouts.function.worker CONFIG PARENT`. CONFIG is what
`turns.worker_config` writes, and PARENT is the process that starts it: the worker ends when that one does.
"""

import asyncio
import inspect
import json
import sys
from typing import Any

from grpo_runtime.errors import UserError
from grpo_runtime.process.line_pipes import announce, private_pipes, send
from grpo_runtime.process.parent_death import die_with
from grpo_runtime.process.user_code import load_either
from grpo_runtime.rollouts.function.rounds import Rounds, UserFunction

FIELD = "sampling.rolloutFunction"
"""Which errors name."""


def main(arguments: list[str]) -> int:
    """Serve until the requests end; returns the exit code."""
    written_config, parent_pid = arguments
    die_with(int(parent_pid))
    config = json.loads(written_config)
    # the loop comes before the user's module, which may begin a task as it is imported
    with asyncio.Runner() as runner:
        requests, replies = runner.run(private_pipes())
        function = announce(replies, lambda: find_function(config))
        if function is None:
            return 1
        rounds = Rounds(function)
        while line := runner.run(requests.readline()):
            send(replies, {"asks": runner.run(_round(rounds, json.loads(line)))})
    return 0


def find_function(config: dict[str, Any]) -> UserFunction:
    """The coroutine function that CONFIG names. Raises UserError when there is none."""
    function = load_either(config["function"], config["file"], field=FIELD)
    if not inspect.iscoroutinefunction(function):
        raise UserError(f"{FIELD}: the function is no coroutine: write `async def`, and await its turns")
    return function


async def _round(rounds: Rounds, request: dict[str, Any]) -> list[dict[str, Any]]:
    if "begin" in request:
        return await rounds.begin(request["begin"])
    return await rounds.resume(request["replies"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
