"""The worker process of one reward function, as the trainer calls it."""

import json
from dataclasses import asdict
from typing import Any

from grpo_runtime.process.line_worker import START_TIMEOUT_SECONDS, LineWorker
from grpo_runtime.rewards.registry import BUILTIN_REWARDS
from grpo_runtime.rewards.types import RewardFunction

MODEL_START_TIMEOUT_SECONDS = 1200.0
"""Covers the reading of a reward model's weights from a slow volume. Other ranks wait meanwhile, for at most
half an hour."""


class WorkerProcess:
    """One reward function in a process of its own."""

    def __init__(self, function: RewardFunction) -> None:
        builtin = BUILTIN_REWARDS.get(function.builtin or "")
        self._timeout_seconds = function.timeout_seconds
        self._worker = LineWorker(
            "grpo_runtime.rewards.worker",
            worker_config(function),
            what=f"rewards: starting {function.name}",
            environment=builtin.environment if builtin else None,
            start_timeout_seconds=START_TIMEOUT_SECONDS
            if function.model is None
            else MODEL_START_TIMEOUT_SECONDS,
        )

    @property
    def is_started(self) -> bool:
        """See `LineWorker.is_started`."""
        return self._worker.is_started

    async def start(self) -> None:
        """See `LineWorker.start`."""
        await self._worker.start()

    async def ask(self, request: bytes) -> dict[str, Any]:
        """The reply to one request within the function's timeout: see `LineWorker.ask`."""
        return await self._worker.ask(request, timeout_seconds=self._timeout_seconds)

    async def close(self) -> None:
        """See `LineWorker.close`."""
        await self._worker.close()


def worker_config(function: RewardFunction) -> str:
    """The first argument of a worker, as JSON."""
    wanted = ("builtin", "function", "code", "model", "options")
    fields = asdict(function)
    return json.dumps({name: fields[name] for name in wanted}, default=str)
