"""What one reward function gave for one chunk of a step. B completions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_runtime.process.line_worker import failure_in, shortened
from grpo_runtime.rewards.types import FailureKind, RewardFailure, RewardRequest

_MAX_SAMPLE_CHARACTERS = 300


@dataclass(frozen=True, kw_only=True)
class Column:
    """The answer of one function for one chunk."""

    values: Sequence[float | None]
    """[B], None where there is no reward."""
    failures: Sequence[RewardFailure] = ()
    logged: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Every value that the function gave to log_metric, by name."""


def column_of_reply(name: str, request: RewardRequest, reply: dict[str, Any]) -> Column:
    """What a reply of a worker says about the chunk `request`; `name` is that of the function. One that no
    worker makes, because the function has written over the protocol, gives no rewards."""
    if "error" in reply:
        reason = "\n".join(failure_in(reply)).strip()
        is_misfit = bool(reply.get("is_misfit"))
        return failed_column(name, request, reason=reason, kind=FailureKind.RAISED, is_misfit=is_misfit)
    if not _is_answer(reply, num_samples=len(request.completions)):
        reason = f"its process wrote {shortened(reply)}"
        return failed_column(name, request, reason=reason, kind=FailureKind.LOST)
    failures = []
    if refused := reply["refused"]:
        index, reason = refused[0]
        failures = [
            RewardFailure(
                name=name,
                kind=FailureKind.REFUSED,
                reason=reason,
                num_samples=len(refused),
                sample=_sample(request, index),
                is_misfit=reply["is_misfit"],
            )
        ]
    return Column(values=reply["rewards"], failures=tuple(failures), logged=reply["metrics"])


def _is_answer(reply: dict[str, Any], *, num_samples: int) -> bool:
    """Whether a reply has a finite number or nothing for each completion, and what else a worker says."""
    rewards, others = reply.get("rewards"), (("refused", list), ("metrics", dict), ("is_misfit", bool))
    return (
        isinstance(rewards, list)
        and len(rewards) == num_samples
        and all(each is None or (type(each) is float and math.isfinite(each)) for each in rewards)
        and all(isinstance(reply.get(name), kind) for name, kind in others)
    )


def failed_column(
    name: str, request: RewardRequest, *, reason: str, kind: FailureKind, is_misfit: bool = False
) -> Column:
    """No reward for any completion of the chunk."""
    num_samples = len(request.completions)
    failure = RewardFailure(
        name=name,
        kind=kind,
        reason=reason,
        num_samples=num_samples,
        sample=_sample(request, 0),
        is_misfit=is_misfit,
    )
    return Column(values=[None] * num_samples, failures=(failure,))


def _sample(request: RewardRequest, index: int) -> dict[str, Any]:
    return {
        "prompt": str(request.prompts[index])[:_MAX_SAMPLE_CHARACTERS],
        "completion": request.completions[index][:_MAX_SAMPLE_CHARACTERS],
    }
