"""The process that runs the user's rollout function: rounds in and out as JSON lines over its pipes.

It is started as `python -m grpo_runtime.rollouts.function.worker CONFIG PARENT`. CONFIG is what
`turns.worker_config` writes, and PARENT is the process that starts it: the worker ends when that one does.
"""

import asyncio
import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from grpo_runtime.errors import UserError
from grpo_runtime.process.line_worker import failure_reply, serve
from grpo_runtime.process.user_code import accepted, load_either
from grpo_runtime.rollouts.function.conversation import Conversation, Turn

UserFunction = Callable[..., Coroutine[Any, Any, object]]
FIELD = "sampling.rolloutFunction"
"""Which errors name."""


def main(arguments: list[str]) -> int:
    """Serve until the requests end; returns the exit code."""
    return serve(arguments, load=lambda config: Rounds(find_function(config)), reply=_reply)


def _reply(rounds: "Rounds", request: dict[str, Any], runner: asyncio.Runner) -> dict[str, Any]:
    return {"asks": runner.run(rounds.answer(request))}


def find_function(config: dict[str, Any]) -> UserFunction:
    """The coroutine function that CONFIG names. Raises UserError when there is none."""
    function = load_either(config["function"], config["file"], field=FIELD)
    if not inspect.iscoroutinefunction(function):
        raise UserError(f"{FIELD}: the function is no coroutine: write `async def`, and await its turns")
    return function


class Rounds:
    """Runs the user's function for all completions of a step, turn by turn.

    A round ends when every completion waits for a turn, is done, or has failed. What the function does beside
    that, such as a task that it has begun, continues between two rounds; a completion that is done then asks
    for it in the next one."""

    def __init__(self, function: UserFunction) -> None:
        self._function = function
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._turns: dict[int, asyncio.Future[Turn]] = {}
        self._busy: set[int] = set()
        self._ended: set[int] = set()
        self._asks: dict[int, dict[str, Any]] = {}
        self._has_stopped = asyncio.Event()
        """Set whenever a completion does nothing more in this round."""

    async def answer(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What completions ask for after a request: one that begins them, or one with their next turns."""
        if "begin" in request:
            return await self._begin(request["begin"])
        return await self._resume(request["replies"])

    async def _begin(self, given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Start the function for the completions `given`; what is left of those before ends. Returns what
        they ask for, in their order."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._turns, self._ended, self._asks = {}, set(), {}
        self._busy = {one["rollout"] for one in given}
        self._tasks = {one["rollout"]: asyncio.create_task(self._run(one)) for one in given}
        return await self._round()

    async def _resume(self, replies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Continue with the turns that were asked for; a completion without one is cut."""
        self._busy = {reply["rollout"] for reply in replies} - self._ended
        for reply in replies:
            index, turn = reply["rollout"], self._turns.pop(reply["rollout"])
            if reply["turn"] is None:
                self._ended.add(index)
                self._asks.pop(index, None)
                self._tasks[index].cancel()
            elif not turn.done():  # otherwise the function has given it up since the last round
                turn.set_result(Turn(**reply["turn"]))
        return await self._round()

    async def _round(self) -> list[dict[str, Any]]:
        while self._busy:
            self._has_stopped.clear()
            await self._has_stopped.wait()
        asks, self._asks = self._asks, {}
        return [asks[index] for index in sorted(asks)]

    async def _run(self, given: Mapping[str, Any]) -> None:
        index = given["rollout"]
        fields = {name: value for name, value in given.items() if name != "rollout"}
        conversation = Conversation(**fields, ask=functools.partial(self._wait, index))
        arguments = {**given["columns"], "prompt": given["prompt"], "conversation": conversation}
        said: dict[str, Any] = {}
        try:
            await self._function(**accepted(self._function, arguments))
            said = {"is_done": True, "added": conversation.added}
        except asyncio.CancelledError:
            if index not in self._ended:
                said = {"error": "CancelledError: the function was cancelled", "traceback": ""}
        except Exception as error:
            said = failure_reply(error, trace=traceback.format_exc())
        self._stop(index, said)
        # what the function has left running asks for nothing more
        self._ended.add(index)

    async def _wait(self, index: int, added: list[str | list[int]], max_tokens: int | None) -> Turn:
        if index in self._ended:
            raise asyncio.CancelledError
        if index in self._turns:
            raise RuntimeError("sample was called while another turn of the same conversation is sampled")
        turn: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._turns[index] = turn
        self._stop(index, {"is_done": False, "added": added, "max_tokens": max_tokens})
        return await turn

    def _stop(self, index: int, said: dict[str, Any]) -> None:
        """The completion does nothing more in this round."""
        if index not in self._ended:
            self._asks[index] = {"rollout": index, **said}
        self._busy.discard(index)
        self._has_stopped.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
