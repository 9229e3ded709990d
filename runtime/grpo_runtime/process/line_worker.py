"""A process that runs the user's code and speaks in lines of JSON, from both sides.

`LineProcess` and `LineWorker` are the parent's: they start the process, ask it within a deadline, and end it
with everything it started. The rest is for the process itself, which runs the user's code. That may print and
read: its stdout is the process's stderr, and its stdin is empty. An event loop reads the requests, so what
the user's code has left running there continues while the process waits for one.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from grpo_runtime.errors import UserError
from grpo_runtime.process.confinement import (
    hide,
    secret_folders,
    warn_of_what_stays_open,
    without_credentials,
)
from grpo_runtime.process.lifetime import die_with

T = TypeVar("T")

START_TIMEOUT_SECONDS = 120.0
"""Covers the import of the user's module, which may import torch on a busy machine."""
MAX_REASON_CHARACTERS = 2000
"""The reason of a failure is cut to this length."""
_MAX_LINE_BYTES = 1 << 26
_MAX_QUOTED = 100


class WorkerFailedError(Exception):
    """The worker did not answer, or could not be started again. The message says whether it ended or the
    deadline passed."""


@dataclass(frozen=True, kw_only=True)
class WorkerProgram:
    """What a worker runs: `python -m MODULE CONFIG PARENT HIDDEN`."""

    module: str
    config: str
    what: str
    """Errors say that this could not be started."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to that of the parent, of which a worker gets all but credentials."""
    start_timeout_seconds: float = START_TIMEOUT_SECONDS


class LineProcess:
    """One process, from its start to its end."""

    def __init__(self, program: WorkerProgram) -> None:
        self._program = program
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Raises UserError when the process does not find the user's function, and WorkerFailedError when it
        ends, takes too long or cannot start what it needs."""
        program = self._program
        hidden = secret_folders(os.environ)
        if hidden is not None:
            warn_of_what_stays_open(hidden)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", program.module, program.config, str(os.getpid())),
            json.dumps(None if hidden is None else [str(folder) for folder in hidden]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_MAX_LINE_BYTES,
            env=without_credentials(os.environ) | dict(program.environment),
            # a process group of its own, so that what the function starts ends with it
            start_new_session=True,
        )
        is_ready = False
        try:
            first = await self._first_line()
            if "user_error" in first:
                raise UserError(first["user_error"])
            if "failure" in first:
                raise WorkerFailedError(first["failure"])
            is_ready = True
        finally:
            if not is_ready:
                await self.close()

    def write(self, line: bytes) -> None:
        """Send a line of JSON with its newline. One that a process no longer takes is lost: `read` says that
        it has ended, with its exit code."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.write(line)

    async def send(self, line: bytes) -> None:
        """As `write`, and wait until the process has taken most of what was sent."""
        self.write(line)
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                await self._process.stdin.drain()

    async def read(self) -> dict[str, Any]:
        """The next line of the process. Raises WorkerFailedError when it has ended, and for a line that is no
        object of JSON, which the user's code has written over the protocol."""
        process = self._process
        assert process is not None and process.stdout is not None
        try:
            line = await process.stdout.readline()
        except ValueError as error:
            raise WorkerFailedError(f"its answer is longer than {_MAX_LINE_BYTES} bytes") from error
        if not line.endswith(b"\n"):
            # also in the middle of an answer
            raise WorkerFailedError(f"its process ended with code {await process.wait()}")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            raise WorkerFailedError(f"its process wrote no answer but {shortened(line)}")
        return reply

    async def _first_line(self) -> dict[str, Any]:
        program = self._program
        try:
            async with asyncio.timeout(program.start_timeout_seconds):
                return await self.read()
        except TimeoutError:
            message = f"{program.what} took more than {program.start_timeout_seconds:.0f} s"
            raise WorkerFailedError(message) from None
        except WorkerFailedError as error:
            raise WorkerFailedError(f"{program.what} ended the process: {error}") from error

    async def close(self) -> None:
        """End the process and everything it started; does nothing when there is no process."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # nothing of its group is left
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


class LineWorker:
    """A process that answers each line with one. A failed call ends it, and the next call starts another."""

    def __init__(self, program: WorkerProgram) -> None:
        self._program = program
        self._process: LineProcess | None = None

    @property
    def is_started(self) -> bool:
        """Whether there is a process, which may still be starting."""
        return self._process is not None

    async def start(self) -> None:
        """Start the process unless it runs. Raises UserError when it does not find the user's function, ends
        or takes too long."""
        try:
            await self._started()
        except WorkerFailedError as error:
            raise UserError(str(error)) from error

    async def ask(self, request: bytes, *, timeout_seconds: float) -> dict[str, Any]:
        """The reply to one request, which is a line of JSON with its newline.

        Raises WorkerFailedError when there is no reply in time or the process cannot be started again, and
        UserError when it has to be started again and no longer finds the function.
        """
        process = await self._started()
        is_answered = False
        try:
            async with asyncio.timeout(timeout_seconds):
                await process.send(request)
                reply = await process.read()
            is_answered = True
        except TimeoutError:
            raise WorkerFailedError(late_message(timeout_seconds)) from None
        finally:
            # also when the caller is cancelled: the next request must not get a late answer
            if not is_answered:
                await self.close()
        return reply

    async def close(self) -> None:
        """End the process and everything it started; does nothing when there is no process."""
        process, self._process = self._process, None
        if process is not None:
            await process.close()

    async def _started(self) -> LineProcess:
        if self._process is not None:
            return self._process
        process = self._process = LineProcess(self._program)
        is_ready = False
        try:
            await process.start()
            is_ready = True
        finally:
            if not is_ready:
                await self.close()
        return process


def shortened(said: object) -> str:
    """The beginning of something that a worker said, for a sentence."""
    written = repr(said)
    return written if len(written) <= _MAX_QUOTED else f"{written[:_MAX_QUOTED]}..."


def late_message(timeout_seconds: float) -> str:
    """What WorkerFailedError says of a deadline."""
    return f"it did not answer within {timeout_seconds:g} s"


class Lines:
    """The lines of a worker, from its side: requests come in, replies go out."""

    def __init__(self, requests: asyncio.StreamReader, replies: TextIO) -> None:
        self._requests = requests
        self._replies = replies

    async def read(self) -> dict[str, Any] | None:
        """The next request; None at the end of them."""
        line = await self._requests.readline()
        request: dict[str, Any] | None = json.loads(line) if line else None
        return request

    def send(self, message: Mapping[str, Any]) -> None:
        """Write one line."""
        self._replies.write(json.dumps(message) + "\n")
        self._replies.flush()


def serve(
    arguments: Sequence[str],
    *,
    load: Callable[[Any], T],
    start: Callable[[T], Coroutine[Any, Any, None]] | None = None,
    answer: Callable[[T, Lines, asyncio.Runner], None],
) -> int:
    """The program of a worker, whose `arguments` are CONFIG, PARENT and HIDDEN, the folders that it is not to
    read, or null where nothing is taken from it: `answer` gets what `load` makes of CONFIG, once `start` has
    made it ready, and reads requests until they end or the parent does. Returns the exit code. A UserError or
    a WorkerFailedError of `load` and `start` is reported to the parent."""
    written_config, parent_pid, hidden = arguments
    die_with(int(parent_pid))
    if (folders := json.loads(hidden)) is not None:
        hide([Path(folder) for folder in folders])
    config = json.loads(written_config)
    # the loop comes before the user's module, which may begin a task as it is imported
    with asyncio.Runner() as runner:
        lines = runner.run(_private_lines())
        try:
            loaded = load(config)
            if start is not None:
                runner.run(start(loaded))
        except UserError as error:
            lines.send({"user_error": str(error)})
            return 1
        except WorkerFailedError as error:
            lines.send({"failure": str(error)})
            return 1
        lines.send({"ready": True})
        answer(loaded, lines, runner)
    return 0


def failure_reply(error: BaseException, *, trace: str) -> dict[str, Any]:
    """The reply when the user's code has raised."""
    sentence = f"{type(error).__name__}: {error}"[:MAX_REASON_CHARACTERS]
    return {"error": sentence, "traceback": trace[-MAX_REASON_CHARACTERS:]}


def failure_in(reply: Mapping[str, Any]) -> tuple[str, str]:
    """The sentence and the traceback of a reply that tells of a failure. None is longer than `failure_reply`
    makes it: the user's code may have written another one over the protocol."""
    sentence, trace = (str(reply.get(name, "")) for name in ("error", "traceback"))
    return sentence[:MAX_REASON_CHARACTERS], trace[-MAX_REASON_CHARACTERS:]


async def _private_lines() -> Lines:
    """Move the protocol's pipes away from file descriptors 0 and 1, which any library may use. The running
    event loop reads the requests."""
    # a request may be as long as it is
    requests = asyncio.StreamReader(limit=sys.maxsize)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(requests), os.fdopen(os.dup(0), "rb", buffering=0)
    )
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return Lines(requests, replies)
