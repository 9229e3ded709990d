"""A process that answers each line of JSON with one line, from both sides.

`LineWorker` is the parent's: it starts the process, asks it within a deadline, and ends it with everything it
started. The functions below it are for the process itself, which runs the user's code. That may print and
read: its stdout is the process's stderr, and its stdin is empty. An event loop reads the requests, so what
the user's code has left running there continues while the process waits for one.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, TypeVar

from grpo_runtime.errors import UserError
from grpo_runtime.process.lifetime import die_with

T = TypeVar("T")

START_TIMEOUT_SECONDS = 120.0
"""Covers the import of the user's module, which may import torch on a busy machine."""
MAX_REASON_CHARACTERS = 2000
"""The reason of a failure is cut to this length."""
_MAX_LINE_BYTES = 1 << 26


class WorkerFailedError(Exception):
    """The worker did not answer, or could not be started again. The message says whether it ended or the
    deadline passed."""


class LineWorker:
    """A failed call ends the process, and the next call starts another one."""

    def __init__(
        self,
        module: str,
        config: str,
        *,
        what: str,
        environment: Mapping[str, str] | None = None,
        start_timeout_seconds: float = START_TIMEOUT_SECONDS,
    ) -> None:
        """The process runs `python -m MODULE CONFIG PARENT`, with `environment` added to that of its
        parent. Errors say that `what` could not be started."""
        self._start_timeout_seconds = start_timeout_seconds
        self._arguments = (sys.executable, "-m", module, config, str(os.getpid()))
        self._what = what
        self._environment = dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_started(self) -> bool:
        """Whether there is a process, which may still be starting."""
        return self._process is not None

    async def start(self) -> None:
        """Start the process unless it runs. Raises UserError when it does not find the user's function, ends
        or takes too long."""
        try:
            await self._start()
        except WorkerFailedError as error:
            raise UserError(str(error)) from error

    async def _start(self) -> None:
        """Raises UserError when the process does not find the user's function, and WorkerFailedError when it
        ends or takes too long."""
        if self._process is not None:
            return
        self._process = await asyncio.create_subprocess_exec(
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_MAX_LINE_BYTES,
            env=os.environ | self._environment,
            # a process group of its own, so that what the function starts ends with it
            start_new_session=True,
        )
        is_ready = False
        try:
            async with asyncio.timeout(self._start_timeout_seconds):
                first = await self._read_line()
            if "user_error" in first:
                raise UserError(first["user_error"])
            is_ready = True
        except TimeoutError:
            message = f"{self._what} took more than {self._start_timeout_seconds:.0f} s"
            raise WorkerFailedError(message) from None
        except WorkerFailedError as error:
            raise WorkerFailedError(f"{self._what} ended the process: {error}") from error
        finally:
            if not is_ready:
                await self.close()

    async def ask(self, request: bytes, *, timeout_seconds: float) -> dict[str, Any]:
        """The reply to one request, which is a line of JSON with its newline.

        Raises WorkerFailedError when there is no reply in time or the process cannot be started again, and
        UserError when it has to be started again and no longer finds the function.
        """
        await self._start()
        is_answered = False
        try:
            async with asyncio.timeout(timeout_seconds):
                reply = await self._exchange(request)
            is_answered = True
        except TimeoutError:
            raise WorkerFailedError(f"it did not answer within {timeout_seconds:g} s") from None
        finally:
            # also when the caller is cancelled: the next request must not get a late answer
            if not is_answered:
                await self.close()
        return reply

    async def close(self) -> None:
        """End the process and everything it started; does nothing when there is no process."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # nothing of its group is left
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    async def _exchange(self, request: bytes) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        # if the process has ended, _read_line says so with its exit code
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(request)
            await self._process.stdin.drain()
        return await self._read_line()

    async def _read_line(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except ValueError as error:
            raise WorkerFailedError(f"its answer is longer than {_MAX_LINE_BYTES} bytes") from error
        if not line.endswith(b"\n"):
            # also in the middle of an answer
            raise WorkerFailedError(f"its process ended with code {await self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        return reply


def serve(
    arguments: Sequence[str],
    *,
    load: Callable[[Any], T],
    reply: Callable[[T, dict[str, Any], asyncio.Runner], dict[str, Any]],
) -> int:
    """The program of a worker, whose `arguments` are CONFIG and PARENT: give what `load` makes of CONFIG to
    `reply` with each request, until the requests end or the parent does; returns the exit code. A UserError
    of `load` is reported to the parent."""
    written_config, parent_pid = arguments
    die_with(int(parent_pid))
    config = json.loads(written_config)
    # the loop comes before the user's module, which may begin a task as it is imported
    with asyncio.Runner() as runner:
        requests, replies = runner.run(_private_pipes())
        try:
            loaded = load(config)
        except UserError as error:
            _send(replies, {"user_error": str(error)})
            return 1
        _send(replies, {"ready": True})
        while line := runner.run(requests.readline()):
            _send(replies, reply(loaded, json.loads(line), runner))
    return 0


def failure_reply(error: BaseException, *, trace: str) -> dict[str, Any]:
    """The reply when the user's code has raised."""
    sentence = f"{type(error).__name__}: {error}"[:MAX_REASON_CHARACTERS]
    return {"error": sentence, "traceback": trace[-MAX_REASON_CHARACTERS:]}


async def _private_pipes() -> tuple[asyncio.StreamReader, TextIO]:
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
    return requests, replies


def _send(replies: TextIO, message: dict[str, Any]) -> None:
    """Write one line."""
    replies.write(json.dumps(message) + "\n")
    replies.flush()
