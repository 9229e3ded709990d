"""The worker process of one reward function, as the trainer calls it."""

import json
from dataclasses import asdict

from grpo_runtime.process.line_worker import START_TIMEOUT_SECONDS, LineWorker
from grpo_runtime.rewards.registry import BUILTIN_REWARDS
from grpo_runtime.rewards.types import RewardFunction

MODEL_START_TIMEOUT_SECONDS = 1200.0
"""Covers the reading of a reward model's weights from a slow volume. Other ranks wait meanwhile, for at most
half an hour."""


def reward_worker(function: RewardFunction, *, start_timeout_seconds: float | None = None) -> LineWorker:
    """The process of one reward function, not yet started. It may take `start_timeout_seconds` to start, or
    what is usual for a function or a model."""
    builtin = BUILTIN_REWARDS.get(function.builtin or "")
    usual_seconds = START_TIMEOUT_SECONDS if function.model is None else MODEL_START_TIMEOUT_SECONDS
    return LineWorker(
        "grpo_runtime.rewards.worker",
        worker_config(function),
        what=f"rewards: starting {function.name}",
        environment=builtin.environment if builtin else None,
        start_timeout_seconds=start_timeout_seconds or usual_seconds,
    )


def worker_config(function: RewardFunction) -> str:
    """The first argument of a worker, as JSON."""
    wanted = ("builtin", "function", "code", "model", "options")
    fields = asdict(function)
    return json.dumps({name: fields[name] for name in wanted}, default=str)
