"""What a pool gave for the chunks of a step, as a table of all completions."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.pool import RewardPool, column_metrics
from grpo_runtime.rewards.types import RewardFailure


@dataclass(frozen=True)
class RewardMatrix:
    """[completions, functions] rewards, and what was said beside them."""

    names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    failures: tuple[RewardFailure, ...]
    metrics: dict[str, float]


def put_together(
    pool: RewardPool, chunks: Sequence[tuple[Column, ...]], *, step: int, is_evaluation: bool = False
) -> RewardMatrix:
    """The pool judges them, as it does those of a step."""
    pool.judge(chunks, step=step, is_evaluation=is_evaluation)
    names = tuple(function.name for function in pool._functions)
    return RewardMatrix(
        names=names,
        values=tuple(
            row for chunk in chunks for row in zip(*(column.values for column in chunk), strict=True)
        ),
        failures=tuple(
            failure
            for columns in zip(*chunks, strict=True)
            for column in columns
            for failure in column.failures
        ),
        metrics=column_metrics(names, chunks),
    )
