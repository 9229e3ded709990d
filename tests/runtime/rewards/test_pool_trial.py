"""Each function is called once before the first step: what ends the run then, and what is only told."""

import logging
from pathlib import Path

import pytest
from reward_matrix import put_together

from grpo_runtime.errors import UserError
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rewards.types import (
    BuiltinFunction,
    ImportedFunction,
    RewardFunction,
    RewardRequest,
    RewardService,
)


def example(name: str) -> RewardFunction:
    return RewardFunction(
        name="mine", source=ImportedFunction(path=f"reward_examples:{name}"), timeout_seconds=30.0
    )


def request(*completions: str, **columns: str) -> RewardRequest:
    return RewardRequest(
        prompts=["a="] * len(completions),
        completions=list(completions),
        completion_ids=[[1]] * len(completions),
        columns={name: [value] * len(completions) for name, value in columns.items()},
        step=0,
        total_steps=200,
    )


TRIAL = request("1", "1", answer="x")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("wants_solution", "it needs solution, which no call has: it can have prompts, completions,"),
        ("wants_solution", "and as columns of the data answer: "),
        ("reads_solution", "it needs solution, which no call has"),
        ("compute_score", "it has the arguments of verl's compute_score"),
        ("no_list", "it returned a float for 2 completions: return a list"),
        ("forgets_to_return", "it returned None for 2 completions"),
        ("scores_by_completion", "it returned a dict for 2 completions"),
        ("too_few", "it returned 1 rewards for 2 completions"),
        ("with_a_reason", "a reward is a tuple, not a number"),
        ("chat_length", "a completion is a text, because prompts are texts"),
    ],
)
async def test_a_function_that_does_not_fit_ends_the_run_before_its_first_step(
    name: str, sentence: str
) -> None:
    async with RewardPool((example("length"), example(name))) as pool:
        with pytest.raises(UserError, match=r"^reward mine does not fit this job: ") as refusal:
            await pool.try_out(TRIAL)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("looks_up_completions", "KeyError: '1'"),
        ("infinite", "a reward is infinite"),
        ("awaits_what_is_cancelled_on_no", "CancelledError"),
        ("dies_on_no", "its process ended with code 3"),
    ],
)
async def test_what_may_be_the_completions_own_fault_is_a_warning_and_counts_for_nothing(
    caplog: pytest.LogCaptureFixture, name: str, reason: str
) -> None:
    completion = "no" if name.endswith("on_no") else "1"
    async with RewardPool((example(name),)) as pool:
        await pool.try_out(request(completion, completion))
        [record] = caplog.records
        assert record.levelno == logging.WARNING
        sample = {"prompt": "a=", "completion": completion}
        assert f"mine failed when it was tried before the first step, with {sample}: {reason}" in caplog.text
        assert pool.open_calls() == []
        if name != "infinite":
            matrix = put_together(pool, [await pool.submit(request("yes"))], step=0)
            assert matrix.failures == ()


async def test_columns_that_arguments_of_the_run_hide_are_told_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with RewardPool((example("length"),)) as pool:
        await pool.try_out(request("1", answer="x", prompts="y", completions="z"))
    [record] = caplog.records
    assert "do not see the columns completions, prompts of the data" in record.getMessage()


async def test_a_function_that_is_slow_in_its_trial_is_a_warning(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with RewardPool((example("writes_its_pid_and_hangs"),)) as pool:
        await pool.try_out(request("1", pid_file=str(tmp_path / "pid")), timeout_seconds=5.0)
    assert "it did not answer within 5 s" in caplog.text


async def test_services_and_built_in_rewards_are_not_tried() -> None:
    service = RewardService(url="http://127.0.0.1:9", job="uid")
    functions = (
        RewardFunction(name="judge", source=service),
        RewardFunction(name="exact", source=BuiltinFunction(name="exact_match")),
        example("length"),
    )
    async with RewardPool(functions) as pool:
        await pool.try_out(request("1"))


async def test_a_metric_of_the_runs_own_name_is_told_once_and_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with RewardPool((example("logs_a_metric_of_the_run"),)) as pool:
        await pool.try_out(TRIAL)
        [record] = caplog.records
        assert record.getMessage() == (
            "reward function mine calls log_metric with completions/mean_length, which is a metric of the "
            "run itself: the value is left out; take another name, such as mine/mean_length"
        )
        matrix = put_together(pool, [await pool.submit(TRIAL)], step=0)
    assert len(caplog.records) == 1
    assert {name for name in matrix.metrics if name.startswith("completions")} == {"completions/own_length"}
