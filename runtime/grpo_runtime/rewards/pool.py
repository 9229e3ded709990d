"""All reward functions of a run: asked at the same time, each in its own process with its own deadline."""

import asyncio
import dataclasses
import json
import logging

from grpo_runtime.rewards.process import WorkerFailedError, WorkerProcess
from grpo_runtime.rewards.types import RewardFailure, RewardFunction, RewardMatrix, RewardRequest

_log = logging.getLogger(__name__)
_MAX_SAMPLE_CHARACTERS = 300


class RewardPool:
    """Scores completions. A function that raises, hangs, dies or returns rubbish costs its own rewards only.

    `async with RewardPool(...) as pool` starts the workers, which raises UserError when a function does not
    exist, and ends them.
    """

    def __init__(self, functions: tuple[RewardFunction, ...], *, answer_column: str) -> None:
        self._functions = functions
        self._workers = [WorkerProcess(function, answer_column=answer_column) for function in functions]

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
        """The rewards of every completion by every function; failures are in the result and in the log.

        Raises UserError only: a module that was there at the start can be gone when a worker starts again.
        """
        # made once for all functions: it holds every token of the step
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
        """End every worker process; harmless when there is none."""
        await asyncio.gather(*(worker.close() for worker in self._workers))


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
