"""All reward functions of a run. They score a step in chunks, each with a deadline of its own."""

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence

from grpo_runtime.errors import UserError
from grpo_runtime.process.background import run_together
from grpo_runtime.report.metrics import is_own_metric
from grpo_runtime.rewards.chunk import Column, failed_column
from grpo_runtime.rewards.kinds import Caller, kind_of
from grpo_runtime.rewards.tolerance import Tolerance
from grpo_runtime.rewards.types import (
    OWN_ARGUMENTS,
    FailureKind,
    OpenCalls,
    RewardFailure,
    RewardFunction,
    RewardRequest,
)

_log = logging.getLogger(__name__)

TRIAL_TIMEOUT_SECONDS = 1200.0
"""Other ranks wait while functions are tried, for at most half an hour."""


class RewardPool:
    """Scores completions. When a function raises, hangs, ends its process or returns no number, only its own
    rewards of that chunk are missing.

    `async with RewardPool(...) as pool` starts the functions and ends them. Starting raises UserError when
    one does not exist.
    """

    def __init__(self, functions: tuple[RewardFunction, ...], *, has_scored: bool = False) -> None:
        """`has_scored` as for `Tolerance`."""
        self._functions = functions
        self._callers: list[Caller] = [kind_of(function).caller(function) for function in functions]
        self._tolerances = [Tolerance(function, has_scored=has_scored) for function in functions]
        self._num_open = [0] * len(functions)
        self._warned: set[tuple[str, str]] = set()
        """A function and a metric of it that was left out because its name is the run's."""
        self._tasks: set[asyncio.Task[tuple[Column, ...]]] = set()

    async def __aenter__(self) -> "RewardPool":
        try:
            await asyncio.gather(*(caller.start() for caller in self._callers))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def try_out(self, chunk: RewardRequest, *, timeout_seconds: float = TRIAL_TIMEOUT_SECONDS) -> None:
        """Call each function of the user once, before the first step; services and models are not called. The
        rewards count for nothing, and neither do failures. A call has its own deadline, and this one.

        Raises UserError when a function does not fit the run. Whatever else fails is a warning: no policy has
        made the completions of `chunk`, and what a function asks may not answer yet.
        """
        places = [place for place, function in enumerate(self._functions) if kind_of(function).is_user_code]
        if places and (hidden := sorted(OWN_ARGUMENTS & chunk.columns.keys())):
            _log.warning(
                "reward functions do not see the columns %s of the data, because arguments of the run have "
                "these names: rename the columns if a function needs them",
                ", ".join(hidden),
            )
        columns = await asyncio.gather(
            *(self._try_out(place, chunk, timeout_seconds=timeout_seconds) for place in places)
        )
        misfits = []
        for place, column in zip(places, columns, strict=True):
            name = self._functions[place].name
            self._warn_of_own_names(name, column.logged)
            for failure in column.failures:
                if failure.is_misfit:
                    misfits.append(f"reward {name} does not fit this job: {failure.reason}")
                    continue
                _log.warning(
                    "reward function %s failed when it was tried before the first step, with %s: %s; the run "
                    "continues, because no policy has made this completion",
                    *(name, failure.sample, failure.reason.partition("\n")[0]),
                )
        if misfits:
            raise UserError("; ".join(misfits))

    def submit(self, chunk: RewardRequest) -> "asyncio.Task[tuple[Column, ...]]":
        """Begin to score a chunk: its result has a column for each of the F functions. What is not awaited
        ends with the pool."""
        task = asyncio.create_task(self._score(chunk))
        self._tasks.add(task)
        return task

    def open_calls(self) -> list[OpenCalls]:
        """The functions that are waited for."""
        return [
            OpenCalls(name=function.name, number=number, outage=caller.outage)
            for function, caller, number in zip(self._functions, self._callers, self._num_open, strict=True)
            if number
        ]

    def judge(self, scored: Sequence[Sequence[Column]], *, step: int, is_evaluation: bool = False) -> None:
        """Look at the failures of a step, of a round of it or of an evaluation: `scored` are the columns of
        its chunks, in their order, and `step` optimizer steps are done before. The log names failures.

        Raises UserError when a function fails more than it may: see `Tolerance`.
        """
        by_function = list(zip(*scored, strict=True))
        for function, tolerance, columns in zip(self._functions, self._tolerances, by_function, strict=True):
            failures = [failure for column in columns for failure in column.failures]
            _log_failures(function, failures, num_chunks=len(columns))
            num_samples = sum(len(column.values) for column in columns)
            judge = tolerance.judge_evaluation if is_evaluation else tolerance.judge
            judge(failures, num_samples=num_samples, step=step)
            for column in columns:
                self._warn_of_own_names(function.name, column.logged)

    async def close(self) -> None:
        """End every call and every process."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(caller.close() for caller in self._callers))

    def _warn_of_own_names(self, function: str, logged: Iterable[str]) -> None:
        """Tell once of each metric that `function` logged under a name of the run's."""
        for name in logged:
            if is_own_metric(name) and (function, name) not in self._warned:
                self._warned.add((function, name))
                _log.warning(
                    "reward function %s calls log_metric with %s, which is a metric of the run itself: the "
                    "value is left out; take another name, such as %s/%s",
                    *(function, name, function, name.rpartition("/")[2]),
                )

    async def _score(self, chunk: RewardRequest) -> tuple[Column, ...]:
        try:
            calls = (self._call(place, chunk) for place in range(len(self._callers)))
            return tuple(await run_together(calls))
        finally:
            current = asyncio.current_task()
            assert current is not None
            self._tasks.discard(current)

    async def _try_out(self, place: int, chunk: RewardRequest, *, timeout_seconds: float) -> Column:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._call(place, chunk)
        except TimeoutError:
            name, reason = self._functions[place].name, f"it did not answer within {timeout_seconds:g} s"
            return failed_column(name, chunk, reason=reason, kind=FailureKind.LOST)

    async def _call(self, place: int, chunk: RewardRequest) -> Column:
        self._num_open[place] += 1
        try:
            return await self._callers[place].score(chunk)
        finally:
            self._num_open[place] -= 1


def column_metrics(names: Sequence[str], scored: Sequence[Sequence[Column]]) -> dict[str, float]:
    """Metrics of the chunks of a step, for the functions `names`: for each rewards/NAME/failures, the number
    of completions that it failed on, and rewards/NAME/failed_calls, the number of chunks that it failed on as
    a whole; and the mean of all values of each metric that a function gave to log_metric."""
    values: dict[str, float] = {}
    for name, columns in zip(names, zip(*scored, strict=True), strict=True):
        logged: dict[str, list[float]] = {}
        for column in columns:
            for metric, found in column.logged.items():
                if not is_own_metric(metric):
                    logged.setdefault(metric, []).extend(found)
        means = {metric: sum(found) / len(found) for metric, found in logged.items()}
        failures = [failure for column in columns for failure in column.failures]
        values |= {metric: mean for metric, mean in means.items() if math.isfinite(mean)}
        values[f"rewards/{name}/failures"] = float(sum(failure.num_samples for failure in failures))
        values[f"rewards/{name}/failed_calls"] = float(len(_of_whole_chunks(failures)))
    return values


def _of_whole_chunks(failures: Sequence[RewardFailure]) -> list[RewardFailure]:
    return [failure for failure in failures if failure.kind is not FailureKind.REFUSED]


def _log_failures(function: RewardFunction, failures: Sequence[RewardFailure], *, num_chunks: int) -> None:
    if not failures:
        return
    _log.warning(
        "reward function %s gave no reward for %d completions, %d of its %d calls failed: %s; the first: %s",
        function.name,
        sum(failure.num_samples for failure in failures),
        len(_of_whole_chunks(failures)),
        num_chunks,
        *(failures[0].reason, failures[0].sample),
    )
