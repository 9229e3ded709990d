"""The trainer's side of a worker process: starts it, asks it within a deadline, and ends it with everything
it started."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any

from grpo_runtime.errors import UserError
from grpo_runtime.rewards.registry import BUILTIN_REWARDS
from grpo_runtime.rewards.types import RewardFunction

START_TIMEOUT_SECONDS = 120.0
"""Covers the import of the user's module, which may import torch on a busy machine."""
MODEL_START_TIMEOUT_SECONDS = 1800.0
"""Covers also the reading of a reward model's weights from a slow volume."""
_MAX_LINE_BYTES = 1 << 26


class WorkerFailedError(Exception):
    """The worker did not answer. The message says whether it ended or the deadline passed."""


class WorkerProcess:
    """One reward function in a process of its own. A failed call ends the process, and the next call starts
    another one."""

    def __init__(self, function: RewardFunction) -> None:
        self._function = function
        self._config = worker_config(function)
        builtin = BUILTIN_REWARDS.get(function.builtin or "")
        self._environment = builtin.environment if builtin else {}
        is_model = function.model is not None
        self._start_timeout_seconds = MODEL_START_TIMEOUT_SECONDS if is_model else START_TIMEOUT_SECONDS
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_started(self) -> bool:
        """Whether there is a process, which may still be starting."""
        return self._process is not None

    async def start(self) -> None:
        """Start the process unless it runs. Raises UserError when there is no such function or when starting
        takes too long."""
        if self._process is not None:
            return
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "grpo_runtime.rewards.worker", self._config, str(os.getpid())),
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
            raise UserError(
                f"{self._starting()} took more than {self._start_timeout_seconds:.0f} s"
            ) from None
        except WorkerFailedError as error:
            raise UserError(f"{self._starting()} ended the process: {error}") from error
        finally:
            if not is_ready:
                await self.close()

    async def ask(self, request: bytes) -> dict[str, Any]:
        """The reply to one request, which is a line of JSON with its newline.

        Raises WorkerFailedError when there is no reply within the function's timeout, and UserError when the
        process has to be started again and no longer finds the function.
        """
        await self.start()
        is_answered = False
        try:
            async with asyncio.timeout(self._function.timeout_seconds):
                reply = await self._exchange(request)
            is_answered = True
        except TimeoutError:
            seconds = self._function.timeout_seconds
            raise WorkerFailedError(f"it did not answer within {seconds:g} s") from None
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

    def _starting(self) -> str:
        return f"rewards: starting {self._function.name}"


def worker_config(function: RewardFunction) -> str:
    """The first argument of a worker, as JSON."""
    wanted = ("builtin", "function", "code", "model", "options")
    fields = asdict(function)
    return json.dumps({name: fields[name] for name in wanted}, default=str)
