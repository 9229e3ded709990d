"""A process of the user's function, as rank 0 sees it: conversations with it, any number at a time.

`worker` is the other side, and says what the lines between them are.
"""

import asyncio
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from grpo_runtime.process.line_worker import (
    LineProcess,
    WorkerFailedError,
    WorkerProgram,
    late_message,
    shortened,
)

Line = dict[str, Any]
"""A line of the process: what a conversation asks for, or how it has ended. The user's code may have written
it."""


class FunctionProcess:
    """One process, from its start to its end. `ended` is done once it has ended, and says why."""

    def __init__(self, program: WorkerProgram) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process = LineProcess(program)
        self._numbers = itertools.count()
        self._inboxes: dict[int, asyncio.Queue[Line]] = {}
        self._num_users = 0
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises UserError when the process does not find the function, and WorkerFailedError when it ends or
        takes too long."""
        await self._process.start()
        self._reader = asyncio.create_task(self._read())

    @property
    def is_used(self) -> bool:
        """Whether somebody is inside `used`."""
        return self._num_users > 0

    @contextmanager
    def used(self) -> Iterator[None]:
        """For as long as the process may be needed."""
        self._num_users += 1
        try:
            yield
        finally:
            self._num_users -= 1

    @contextmanager
    def conversation(self, *, timeout_seconds: float | None) -> Iterator["OpenConversation"]:
        """A new one. What of it is still open at the end of the `with` is cut, and not waited for.
        `timeout_seconds` is how long each of its ways to the next line may take; None is no limit."""
        number = next(self._numbers)
        inbox = self._inboxes[number] = asyncio.Queue()
        conversation = OpenConversation(self, number, inbox, timeout_seconds=timeout_seconds)
        try:
            yield conversation
        finally:
            del self._inboxes[number]
            if conversation.is_open:
                self.write(number, {"cut": True})

    async def hangs(self, *, after_seconds: float) -> bool:
        """Whether its event loop stands for so long, because the function blocks it."""
        number = next(self._numbers)
        inbox = self._inboxes[number] = asyncio.Queue()
        self.write(number, {"ping": True})
        answer = asyncio.create_task(inbox.get())
        try:
            either: set[asyncio.Future[Any]] = {answer, self.ended}
            done, _ = await asyncio.wait(either, timeout=after_seconds, return_when=asyncio.FIRST_COMPLETED)
            return not done
        finally:
            answer.cancel()
            del self._inboxes[number]

    def write(self, number: int, message: Mapping[str, Any]) -> None:
        """Send a line about a conversation, without waiting until there is room for it."""
        self._process.write(_line(number, message))

    async def send(self, number: int, message: Mapping[str, Any]) -> None:
        """Send a line about a conversation."""
        await self._process.send(_line(number, message))

    async def close(self, *, why: str) -> None:
        """End the process with all that the function has begun."""
        self._note_end(why)
        if self._reader is not None:
            self._reader.cancel()
        await self._process.close()

    async def _read(self) -> None:
        try:
            while True:
                said = await self._process.read()
                if type(number := said.get("id")) is not int:
                    raise WorkerFailedError(f"its process wrote {shortened(said)}, which is of no completion")
                inbox = self._inboxes.get(number)
                if inbox is not None:  # otherwise nobody waits for it any more
                    inbox.put_nowait(said)
        except WorkerFailedError as error:
            self._note_end(str(error))
            # also what it has started
            await self._process.close()

    def _note_end(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(why)


class OpenConversation:
    """One conversation. Each method sends a line and returns the next one that the process says of it.

    They raise WorkerFailedError when that is late. That the process has ended is not noticed here: see
    `FunctionProcess.ended`.
    """

    def __init__(
        self,
        process: FunctionProcess,
        number: int,
        inbox: "asyncio.Queue[Line]",
        *,
        timeout_seconds: float | None,
    ) -> None:
        self.is_open = False
        """Whether it has begun, and its last line has not come."""
        self._process = process
        self._number = number
        self._inbox = inbox
        self._timeout_seconds = timeout_seconds

    async def begin(self, given: Mapping[str, Any]) -> Line:
        """Call the function, which gets a `Conversation` with these fields."""
        self.is_open = True
        return await self._say({"begin": given})

    async def resume(self, turn: Mapping[str, Any]) -> Line:
        """Give the function the turn that it has asked for."""
        return await self._say({"turn": turn})

    async def cut(self) -> Line:
        """Cancel the function, and return once it has ended."""
        return await self._say({"cut": True})

    async def _say(self, message: Mapping[str, Any]) -> Line:
        seconds = self._timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._process.send(self._number, message)
                said = await self._inbox.get()
        except TimeoutError:
            assert seconds is not None
            raise WorkerFailedError(late_message(seconds)) from None
        self.is_open = "max_tokens" in said
        return said


def _line(number: int, message: Mapping[str, Any]) -> bytes:
    return json.dumps({"id": number, **message}).encode() + b"\n"
