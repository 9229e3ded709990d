"""The trainer's side of a worker process: start it, ask within a deadline, end it and all it started."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any

from grpo_runtime.data.reasoning_gym import SAME_EVERYWHERE
from grpo_runtime.errors import UserError
from grpo_runtime.rewards.types import RewardFunction

START_TIMEOUT_SECONDS = 120.0
"""For importing the user's module, which may import torch on a busy machine."""
_MAX_LINE_BYTES = 1 << 26


class WorkerFailedError(Exception):
    """The worker gave no answer: it ended, or the deadline passed. The message says which."""


class WorkerProcess:
    """One reward function in a process of its own; a failed call ends it and the next starts another."""

    def __init__(self, function: RewardFunction) -> None:
        self._function = function
        self._config = worker_config(function)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process if it does not run. Raises UserError when the function is not there."""
        if self._process is not None:
            return
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "grpo_runtime.rewards.worker", self._config, str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_MAX_LINE_BYTES,
            env=os.environ | SAME_EVERYWHERE if self._function.builtin == "reasoning_gym" else None,
            # a process group of its own, so that what the function starts ends with it
            start_new_session=True,
        )
        is_ready = False
        try:
            first = await asyncio.wait_for(self._read_line(), START_TIMEOUT_SECONDS)
            if "user_error" in first:
                raise UserError(first["user_error"])
            is_ready = True
        except TimeoutError:
            raise UserError(f"{self._importing()} took more than {START_TIMEOUT_SECONDS:.0f} s") from None
        except WorkerFailedError as error:
            raise UserError(f"{self._importing()} ended the process: {error}") from error
        finally:
            if not is_ready:
                await self.close()

    async def ask(self, request: bytes) -> dict[str, Any]:
        """The reply to one request, which is a line of JSON with its newline.

        Raises WorkerFailedError when there is none within the function's timeout, and UserError when the
        process has to be started again and the function is gone.
        """
        await self.start()
        is_answered = False
        try:
            reply = await asyncio.wait_for(self._exchange(request), self._function.timeout_seconds)
            is_answered = True
        except TimeoutError:
            seconds = self._function.timeout_seconds
            raise WorkerFailedError(f"it did not answer within {seconds:g} s") from None
        finally:
            # also when the caller is cancelled: a late answer must not be taken for the next one
            if not is_answered:
                await self.close()
        return reply

    async def close(self) -> None:
        """End the process and everything it started; harmless when there is none."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # nothing of its group is left
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    async def _exchange(self, request: bytes) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        # where the process has ended, reading says so and how
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
        return json.loads(line)

    def _importing(self) -> str:
        return f"rewards: starting {self._function.name}"


def worker_config(function: RewardFunction) -> str:
    """What a worker is started with, as JSON."""
    wanted = ("builtin", "function", "code", "options")
    fields = asdict(function)
    return json.dumps({name: fields[name] for name in wanted}, default=str)
