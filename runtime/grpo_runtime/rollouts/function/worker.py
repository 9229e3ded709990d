"""The process that runs the user's rollout function, for any number of conversations at a time.

It is started as `python -m grpo_runtime.rollouts.function.worker CONFIG PARENT HIDDEN`, as
`process.line_worker` says. CONFIG is what `worker_config` writes.

Its requests and replies are lines of JSON over its pipes. Each names a conversation by its `id`, and each
conversation goes its own way:

    {"id": 7, "begin": {...}}    call the function, with these fields of `Conversation`
    {"id": 7, "turn": {...}}     the turn that it has asked for
    {"id": 7, "cut": true}       cancel the function: it gets no other turn, or nobody waits for it
    {"id": 8, "ping": true}      of no conversation: answered at once, unless the function blocks the loop

    {"id": 7, "added": [...], "max_tokens": 5}    asks for a turn, with what was added before it
    {"id": 7, "added": [...], "is_done": true}    the last line of a conversation: the function has returned,
    {"id": 7, "error": "...", "traceback": ""}    raised,
    {"id": 7, "is_cut": true}                     or ended because it was cut
"""

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from typing import Any

from grpo_runtime.errors import UserError
from grpo_runtime.process.line_worker import Lines, failure_reply, serve
from grpo_runtime.process.user_code import FunctionFile, accepted, load_either
from grpo_runtime.rollouts.function.conversation import Ask, Conversation, Turn

UserFunction = Callable[..., Coroutine[Any, Any, object]]
FIELD = "sampling.rolloutFunction"
"""Which errors name."""


def main(arguments: list[str]) -> int:
    """Serve until the requests end; returns the exit code."""
    return serve(arguments, load=find_function, answer=_answer)


def _answer(function: UserFunction, lines: Lines, runner: asyncio.Runner) -> None:
    async def converse(given: Mapping[str, Any], ask: Ask) -> dict[str, Any]:
        conversation = Conversation(**given, ask=ask)
        arguments = {**given["columns"], "prompt": given["prompt"], "conversation": conversation}
        await function(**accepted(function, arguments))
        return {"added": conversation.added}

    runner.run(Conversations(converse, lines).serve())


def worker_config(function: str | None, file: FunctionFile | None, *, field: str, **more: Any) -> str:
    """CONFIG of a function that is at `function` or in `file`, and which errors call `field`; `more` is for
    its worker."""
    written = None if file is None else asdict(file)
    return json.dumps({"function": function, "file": written, "field": field, **more}, default=str)


def find_function(config: dict[str, Any]) -> UserFunction:
    """The coroutine function that CONFIG names. Raises UserError when there is none."""
    field = config["field"]
    function: UserFunction = load_either(config["function"], config["file"], field=field)
    if not inspect.iscoroutinefunction(function):
        raise UserError(f"{field}: the function is no coroutine: write `async def`, and await its turns")
    return function


Converse = Callable[[Mapping[str, Any], Ask], Coroutine[Any, Any, dict[str, Any]]]
"""Calls the user's function with what a conversation begins with, and returns what its last line says."""


class Conversations:
    """Those that have begun and not ended, by their ids."""

    def __init__(self, converse: Converse, lines: Lines) -> None:
        self._converse = converse
        self._lines = lines
        self._open: dict[int, _Running] = {}

    async def serve(self) -> None:
        """Take requests until they end. What the function does beside its conversations, such as a task that
        it has begun, continues meanwhile."""
        while (request := await self._lines.read()) is not None:
            number = request["id"]
            if "ping" in request:
                self._lines.send({"id": number})
            elif "begin" in request:
                self._begin(number, request["begin"])
            elif conversation := self._open.get(number):  # otherwise it has ended in the meantime
                if "turn" in request:
                    conversation.resume(Turn(**request["turn"]))
                else:
                    conversation.cut()

    def _begin(self, number: int, given: Mapping[str, Any]) -> None:
        def say(said: Mapping[str, Any]) -> None:
            self._lines.send({"id": number, **said})

        def end(said: Mapping[str, Any]) -> None:
            del self._open[number]
            say(said)

        self._open[number] = _Running(self._converse, given, on_ask=say, on_end=end)


class _Running:
    """A call of the user's function: it makes one completion."""

    def __init__(
        self,
        converse: Converse,
        given: Mapping[str, Any],
        *,
        on_ask: Callable[[Mapping[str, Any]], None],
        on_end: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._on_ask = on_ask
        self._on_end = on_end
        self._turn: asyncio.Future[Turn] | None = None
        self._is_cut = False
        self._has_ended = False
        self._task = asyncio.create_task(self._run(converse, given))
        # one that is cut before its first step never runs
        self._task.add_done_callback(lambda _: self._end({"is_cut": True}))

    def resume(self, turn: Turn) -> None:
        """Continue with the turn that was asked for."""
        asked, self._turn = self._turn, None
        if asked is not None and not asked.done():  # otherwise the function has given it up
            asked.set_result(turn)

    def cut(self) -> None:
        """Cancel the function, which asks for nothing more."""
        self._is_cut = True
        self._task.cancel()

    async def _run(self, converse: Converse, given: Mapping[str, Any]) -> None:
        said: dict[str, Any]
        try:
            said = {"is_done": True, **await converse(given, self._ask)}
        except asyncio.CancelledError:
            said = {"error": "CancelledError: the function was cancelled", "traceback": ""}
        except Exception as error:
            said = failure_reply(error, trace=traceback.format_exc())
        if self._is_cut:
            # what a program has written until then
            said = {"is_cut": True, **{name: said[name] for name in ("output",) if name in said}}
        self._end(said)

    async def _ask(self, added: list[str | list[int]], max_tokens: int | None) -> Turn:
        if self._is_cut or self._has_ended:
            # what the function has left running asks for nothing more
            raise asyncio.CancelledError
        if self._turn is not None:
            raise RuntimeError("sample was called while another turn of the same conversation is sampled")
        self._on_ask({"added": added, "max_tokens": max_tokens})
        self._turn = asyncio.get_running_loop().create_future()
        return await self._turn

    def _end(self, said: Mapping[str, Any]) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._on_end(said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
