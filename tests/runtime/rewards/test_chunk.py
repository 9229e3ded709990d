"""A step is scored in chunks, by as many processes as are asked for: what one chunk costs, and what ends a
run."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reward_matrix import RewardMatrix, put_together
from skipping_clock import SkippingClock

from grpo_runtime.errors import UserError
from grpo_runtime.rewards.chunk import column_of_reply
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rewards.tolerance import Tolerance
from grpo_runtime.rewards.types import (
    FailureKind,
    ImportedFunction,
    RewardFailure,
    RewardFunction,
    RewardRequest,
)

STEP = 3


def example(name: str, *, workers: int = 1, timeout_seconds: float = 30.0) -> RewardFunction:
    return RewardFunction(
        name=name,
        source=ImportedFunction(path=f"reward_examples:{name}"),
        timeout_seconds=timeout_seconds,
        workers=workers,
        max_failure_share=0.5,
    )


def chunks(*groups: Sequence[str], **columns: str) -> list[RewardRequest]:
    return [
        RewardRequest(
            prompts=["a="] * len(group),
            completions=list(group),
            completion_ids=[[1]] * len(group),
            columns={name: [value] * len(group) for name, value in columns.items()},
            step=STEP,
            total_steps=200,
        )
        for group in groups
    ]


async def scored(pool: RewardPool, requests: Sequence[RewardRequest]) -> RewardMatrix:
    return put_together(pool, await asyncio.gather(*map(pool.submit, requests)), step=STEP)


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"rewards": [1.0]},
        {"rewards": [1.0, 2.0], "refused": [], "metrics": {}, "is_misfit": False},
        {"rewards": [math.nan], "refused": [], "metrics": {}, "is_misfit": False},
        {"rewards": ["1"], "refused": [], "metrics": {}, "is_misfit": False},
        {"rewards": [1.0], "refused": 3, "metrics": {}, "is_misfit": False},
    ],
    ids=str,
)
def test_a_reply_that_no_worker_makes_costs_the_rewards_of_its_chunk(reply: dict[str, Any]) -> None:
    [chunk] = chunks(["x"])
    column = column_of_reply("mine", chunk, reply)
    assert column.values == [None]
    [failure] = column.failures
    assert (failure.kind, failure.reason.startswith("its process wrote {")) == (FailureKind.LOST, True)


async def test_a_chunk_that_hangs_costs_its_own_rewards_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child_file, clock = tmp_path / "child", SkippingClock(monkeypatch)
    step = chunks(["yes", "a"], ["no", "b"], ["c", "d"], child_file=str(child_file))
    async with RewardPool((example("hangs_on_no", timeout_seconds=30.0),)) as pool:
        scoring = asyncio.ensure_future(scored(pool, step))
        matrix = await clock.skip_once(child_file.exists, during=scoring, seconds=30.0)
    assert matrix.values == ((1.0,), (1.0,), (None,), (None,), (1.0,), (1.0,))
    (failure,) = matrix.failures
    assert (failure.kind, failure.reason) == (FailureKind.LOST, "it did not answer within 30 s")
    assert failure.sample["completion"] == "no"
    assert matrix.metrics == {"rewards/hangs_on_no/failures": 2.0, "rewards/hangs_on_no/failed_calls": 1.0}


@pytest.mark.parametrize("name", ["raises_on_no", "dies_on_no"])
async def test_what_fails_in_some_chunks_is_counted_and_the_step_goes_on(name: str) -> None:
    async with RewardPool((example(name),)) as pool:
        matrix = await scored(pool, chunks(["no", "a"], ["b", "c"]))
    assert matrix.values == ((None,), (None,), (1.0,), (1.0,))
    assert matrix.metrics[f"rewards/{name}/failed_calls"] == 1.0


async def test_what_raises_in_every_chunk_ends_the_run_with_what_it_raised() -> None:
    async with RewardPool((example("raises_on_no"),)) as pool:
        with pytest.raises(UserError, match=r"raises_on_no failed on 4 of 4 .*: RuntimeError: I will not$"):
            await scored(pool, chunks(["no", "a"], ["b", "no"]))


@pytest.mark.parametrize("workers", [1, 3])
async def test_rewards_and_metrics_do_not_depend_on_the_number_of_processes(workers: int) -> None:
    groups = [["a" * n, "b" * (n * n), "c"] for n in range(1, 8)]
    async with RewardPool((example("within_the_group", workers=workers),)) as pool:
        matrix = await scored(pool, chunks(*groups))
    means = [sum(map(len, group)) / 3 for group in groups]
    expected = [len(text) - mean for group, mean in zip(groups, means, strict=True) for text in group]
    assert [value for (value,) in matrix.values] == expected
    assert matrix.metrics["group/length"] == sum(len(text) for group in groups for text in group) / 21


async def test_several_processes_call_a_function_at_the_same_time(tmp_path: Path) -> None:
    async with RewardPool((example("meets_another", workers=2),)) as pool:
        matrix = await scored(pool, chunks(["a"], ["b"], folder=str(tmp_path)))
    assert len(set(matrix.values)) == 2


async def test_a_process_starts_only_when_all_others_are_at_work() -> None:
    function = replace(example("within_the_group", workers=8))
    async with RewardPool((function,)) as pool:
        for _ in range(3):
            await scored(pool, chunks(["a"]))
        (group,) = pool._callers
        assert [worker.is_started for worker in group._workers] == [True] + [False] * 7  # type: ignore[attr-defined]


async def test_calls_that_nobody_waits_for_end_with_the_pool(tmp_path: Path) -> None:
    async with RewardPool((example("writes_its_pid_and_hangs", timeout_seconds=600),)) as pool:
        call = pool.submit(chunks(["a"], pid_file=str(tmp_path / "pid"))[0])
    assert call.cancelled()


def failure(kind: FailureKind, num_samples: int = 4) -> RewardFailure:
    return RewardFailure(name="mine", kind=kind, reason="it hung\nhere", num_samples=num_samples, sample={})


MINE = RewardFunction(name="mine", source=None, max_failure_share=0.5, max_failing_steps=3)


def test_one_call_without_an_answer_is_tolerated_also_where_a_step_has_no_other() -> None:
    tolerance = Tolerance(MINE)
    tolerance.judge([failure(FailureKind.LOST)], num_samples=4, step=0)
    with pytest.raises(UserError, match=r"mine failed on 8 of 8 completions of step 2 \(100%\)"):
        tolerance.judge([failure(FailureKind.LOST)] * 2, num_samples=8, step=1)


@pytest.mark.parametrize("scored_by", ["this attempt", "an earlier one"])
def test_a_function_that_has_scored_a_step_and_then_answers_nothing_has_max_failing_steps(
    scored_by: str,
) -> None:
    tolerance = Tolerance(MINE, has_scored=scored_by == "an earlier one")
    if scored_by == "this attempt":
        tolerance.judge([], num_samples=64, step=0)
    for step in range(1, 3):
        tolerance.judge([failure(FailureKind.LOST)] * 16, num_samples=64, step=step)
    with pytest.raises(UserError, match="failed in 3 steps in a row, up to step 4"):
        tolerance.judge([failure(FailureKind.LOST)] * 16, num_samples=64, step=3)


def test_a_function_that_has_scored_a_step_and_then_raises_for_most_of_one_ends_the_run() -> None:
    tolerance = Tolerance(MINE, has_scored=True)
    failures = [failure(FailureKind.LOST)] + [failure(FailureKind.RAISED)] * 9
    with pytest.raises(UserError, match=r"failed on 36 of 64 completions of step 2 \(56%\)"):
        tolerance.judge(failures, num_samples=64, step=1)


async def test_an_evaluation_is_judged_apart_from_the_step_that_follows_it() -> None:
    good, bad = [["a", "b"]] * 8, [["no", "a"]] * 2
    async with RewardPool((example("raises_on_no"),)) as pool:
        evaluated = await asyncio.gather(*map(pool.submit, chunks(*good)))
        put_together(pool, evaluated, step=STEP, is_evaluation=True)
        with pytest.raises(UserError, match=r"raises_on_no failed on 4 of 4 completions of step 4 "):
            await scored(pool, chunks(*bad))
        evaluated = await asyncio.gather(*map(pool.submit, chunks(*bad)))
        with pytest.raises(UserError, match=r"on 4 of 4 completions of the evaluation after step 3 \(100%\)"):
            put_together(pool, evaluated, step=STEP, is_evaluation=True)


def test_failing_evaluations_do_not_count_as_steps_in_a_row() -> None:
    tolerance = Tolerance(MINE)
    for step in range(9):
        tolerance.judge_evaluation([failure(FailureKind.LOST)], num_samples=64, step=step)
        if step in (3, 6):
            tolerance.judge([failure(FailureKind.LOST)], num_samples=64, step=step)
    with pytest.raises(UserError, match="failed on 64 of 64 completions of the evaluation after step 9"):
        tolerance.judge_evaluation([failure(FailureKind.LOST)] * 16, num_samples=64, step=9)


@pytest.mark.parametrize("kind", [FailureKind.RAISED, FailureKind.LOST])
def test_failing_calls_in_so_many_steps_in_a_row_end_the_run(kind: FailureKind) -> None:
    tolerance = Tolerance(MINE)
    for step in range(2):
        tolerance.judge([failure(kind)], num_samples=64, step=step)
    tolerance.judge([], num_samples=64, step=2)
    for step in range(3, 5):
        tolerance.judge([failure(kind)], num_samples=64, step=step)
    with pytest.raises(UserError) as end:
        tolerance.judge([failure(kind)], num_samples=64, step=5)
    assert str(end.value) == (
        "reward mine failed in 3 steps in a row, up to step 6, which is its maxFailingSteps: it hung"
    )


def test_rounds_of_a_step_are_judged_together() -> None:
    tolerance = Tolerance(MINE)
    for step in range(2):
        tolerance.judge([], num_samples=64, step=step)
        # of a round of one group: all of it, and little of the step
        for _ in range(2):
            tolerance.judge([failure(FailureKind.RAISED)], num_samples=4, step=step)
        tolerance.judge([], num_samples=4, step=step)
    tolerance.judge([], num_samples=64, step=2)
    with pytest.raises(UserError, match="3 steps in a row, up to step 3"):
        tolerance.judge([failure(FailureKind.RAISED)], num_samples=4, step=2)


def test_single_values_that_are_no_rewards_do_not_make_a_failing_step() -> None:
    tolerance = Tolerance(MINE)
    for step in range(9):
        tolerance.judge([failure(FailureKind.REFUSED, 1)], num_samples=64, step=step)
