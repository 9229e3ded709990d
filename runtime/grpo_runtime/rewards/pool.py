"""All reward functions of a run, called at the same time, each in its own process and with its own
deadline."""

import asyncio
import dataclasses
import json
import logging

from grpo_runtime.errors import UserError
from grpo_runtime.rewards.process import WorkerFailedError, WorkerProcess
from grpo_runtime.rewards.types import RewardFailure, RewardFunction, RewardMatrix, RewardRequest

_log = logging.getLogger(__name__)
_MAX_SAMPLE_CHARACTERS = 300


class RewardPool:
    """Scores completions. When a function raises, hangs, ends its process or returns no number, only its own
    rewards are missing.

    `async with RewardPool(...) as pool` starts the workers and ends them. Starting raises UserError when a
    function does not exist.
    """

    def __init__(self, functions: tuple[RewardFunction, ...]) -> None:
        self._functions = functions
        self._workers = [WorkerProcess(function) for function in functions]

    async def __aenter__(self) -> "RewardPool":
        try:
            await asyncio.gather(*(worker.start() for worker in self._workers))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def score(self, request: RewardRequest) -> RewardMatrix:
        """The rewards of every completion by every function. Failures are in the result and in the log.

        Raises UserError when a function fails on more than its `max_failure_share` of the completions, and
        when a worker that has to start again no longer finds its module.
        """
        # written once for all functions, because it holds every token of the step
        line = json.dumps(vars(request)).encode() + b"\n"
        scored = await asyncio.gather(
            *(_ask(f, w, line, request) for f, w in zip(self._functions, self._workers, strict=True))
        )
        failures = [failure for one in scored for failure in one.failures]
        for failure in failures:
            _log.warning(
                "reward function %s gave no reward for %d completions: %s; the first: %s",
                *(failure.name, failure.num_samples, failure.reason, failure.sample),
            )
        for function in self._functions:
            _refuse_too_many(function, failures, request)
        return RewardMatrix(
            names=tuple(function.name for function in self._functions),
            values=tuple(zip(*(one.column for one in scored), strict=True)),
            failures=tuple(failures),
            metrics={name: value for one in scored for name, value in one.metrics.items()}
            | self._failure_counts(failures),
        )

    def _failure_counts(self, failures: list[RewardFailure]) -> dict[str, float]:
        counts = {f"rewards/{function.name}/failures": 0.0 for function in self._functions}
        for failure in failures:
            counts[f"rewards/{failure.name}/failures"] += failure.num_samples
        return counts

    async def close(self) -> None:
        """End every worker process."""
        await asyncio.gather(*(worker.close() for worker in self._workers))


def _refuse_too_many(function: RewardFunction, failures: list[RewardFailure], request: RewardRequest) -> None:
    mine = [failure for failure in failures if failure.name == function.name]
    num_failed, num_samples = sum(failure.num_samples for failure in mine), len(request.completions)
    if num_failed > function.max_failure_share * num_samples:
        raise UserError(
            f"reward {function.name} failed on {num_failed} of {num_samples} completions of step "
            f"{request.step + 1} ({num_failed / num_samples:.0%}), more than its maxFailureShare of "
            f"{function.max_failure_share:.0%}: {mine[0].reason.partition(chr(10))[0]}"
        )


@dataclasses.dataclass(frozen=True)
class _Column:
    column: list[float | None]
    failures: list[RewardFailure]
    metrics: dict[str, float]


async def _ask(
    function: RewardFunction, worker: WorkerProcess, line: bytes, request: RewardRequest
) -> _Column:
    num_samples = len(request.completions)
    try:
        reply = await worker.ask(line)
    except WorkerFailedError as error:
        return _failed(function, request, reason=str(error))
    if "error" in reply:
        return _failed(function, request, reason=f"{reply['error']}\n{reply['traceback']}")
    failures = []
    if refused := reply["refused"]:
        index, reason = refused[0]
        failures.append(_failure(function, request, index=index, reason=reason, num_samples=len(refused)))
    assert len(reply["rewards"]) == num_samples
    return _Column(reply["rewards"], failures, reply["metrics"])


def _failed(function: RewardFunction, request: RewardRequest, *, reason: str) -> _Column:
    num_samples = len(request.completions)
    failure = _failure(function, request, index=0, reason=reason, num_samples=num_samples)
    return _Column([None] * num_samples, [failure], {})


def _failure(
    function: RewardFunction, request: RewardRequest, *, index: int, reason: str, num_samples: int
) -> RewardFailure:
    sample = {
        "prompt": str(request.prompts[index])[:_MAX_SAMPLE_CHARACTERS],
        "completion": request.completions[index][:_MAX_SAMPLE_CHARACTERS],
    }
    return RewardFailure(name=function.name, reason=reason, num_samples=num_samples, sample=sample)
