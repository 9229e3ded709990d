"""The worker processes of one reward function: the group that calls them, and the program that they run.

A worker is started as `python -m grpo_runtime.rewards.worker CONFIG PARENT HIDDEN`, as `process.line_worker`
says. CONFIG is what `worker_config` writes. Requests and rewards are
JSON lines over its pipes. Its first line says whether it found the function; after that it answers every line
with one line.

It has one event loop. A function that is no coroutine is called outside of it, in the main thread, and may
run a loop of its own. What is imported here is imported in every worker: nothing large.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from grpo_runtime.process.line_worker import (
    START_TIMEOUT_SECONDS,
    Lines,
    LineWorker,
    WorkerFailedError,
    WorkerProgram,
    failure_reply,
    serve,
)
from grpo_runtime.rewards.chunk import Column, column_of_reply, failed_column
from grpo_runtime.rewards.functions import MisfitError, NoNumberError, call_function, clean_reward
from grpo_runtime.rewards.kinds import REWARD_KINDS, kind_of, name_of
from grpo_runtime.rewards.types import FailureKind, RewardFunction, RewardRequest


class WorkerGroup:
    """Calls one function in several processes at a time. Which of them gets a chunk changes nothing.

    A process beyond the first starts when a chunk finds all others at work.
    """

    outage = None
    """A process is started again at once."""

    def __init__(self, function: RewardFunction, *, start_timeout_seconds: float | None = None) -> None:
        """A process has `start_timeout_seconds` to start, or what is usual for its function."""
        self._name = function.name
        self._timeout_seconds = function.timeout_seconds
        self._workers = [
            reward_worker(function, start_timeout_seconds=start_timeout_seconds)
            for _ in range(function.workers)
        ]
        # the one that was given back last is taken first: the others may never have to start
        self._idle: asyncio.LifoQueue[LineWorker] = asyncio.LifoQueue()
        for worker in reversed(self._workers):
            self._idle.put_nowait(worker)

    async def start(self) -> None:
        """Start the first process. Raises UserError when there is no such function, or when the process ends
        or takes too long."""
        await self._workers[0].start()

    async def score(self, request: RewardRequest) -> Column:
        """The rewards of a chunk. Its deadline begins when a process gets it.

        A process that misses the deadline, or dies, is replaced, and its chunk has no rewards; nor has the
        chunk for which a process cannot be started, which the next one tries again. Raises UserError when a
        process that has to be started no longer finds the function.
        """
        line = json.dumps(vars(request)).encode() + b"\n"
        worker = await self._idle.get()
        try:
            reply = await worker.ask(line, timeout_seconds=self._timeout_seconds)
        except WorkerFailedError as error:
            return failed_column(self._name, request, reason=str(error), kind=FailureKind.LOST)
        finally:
            self._idle.put_nowait(worker)
        return column_of_reply(self._name, request, reply)

    async def close(self) -> None:
        """End every process."""
        await asyncio.gather(*(worker.close() for worker in self._workers))


def reward_worker(function: RewardFunction, *, start_timeout_seconds: float | None = None) -> LineWorker:
    """The process of one reward function, not yet started. It may take `start_timeout_seconds` to start, or
    what is usual for its kind."""
    kind = kind_of(function)
    return LineWorker(
        WorkerProgram(
            module="grpo_runtime.rewards.worker",
            config=worker_config(function),
            what=f"rewards: starting {function.name}",
            environment=kind.environment(function.source),
            start_timeout_seconds=start_timeout_seconds
            or kind.start_timeout_seconds
            or START_TIMEOUT_SECONDS,
        )
    )


def worker_config(function: RewardFunction) -> str:
    """The first argument of a worker, as JSON."""
    config = {"kind": name_of(kind_of(function)), "source": asdict(function.source)}
    return json.dumps(config, default=str)


def main(arguments: list[str]) -> int:
    """The program of a worker: serve until the requests end; returns the exit code."""
    return serve(arguments, load=_function, answer=_answer)


def _answer(function: Callable[..., Any], lines: Lines, runner: asyncio.Runner) -> None:
    """One reply to each request. Between `read` and the next one no event loop runs."""
    while (request := runner.run(lines.read())) is not None:
        lines.send(_reply(function, request, runner))


def _function(config: dict[str, Any]) -> Callable[..., Any]:
    kind = REWARD_KINDS[config["kind"]]
    assert kind.load is not None  # others have no workers
    return kind.load(TypeAdapter(kind.source).validate_python(config["source"]))


def _reply(function: Callable[..., Any], request: dict[str, Any], runner: asyncio.Runner) -> dict[str, Any]:
    """The reply to one request. An exception of the user's code becomes a reply too, and so does the
    cancellation of what it awaits."""
    try:
        rewards, metrics = call_function(function, request, runner=runner)
    except MisfitError as error:
        return {"error": str(error), "traceback": "", "is_misfit": True}
    except (Exception, asyncio.CancelledError) as error:
        return failure_reply(error, trace=traceback.format_exc()) | {"is_misfit": False}
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
