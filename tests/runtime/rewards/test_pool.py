"""Rewards in worker processes: what functions get, and that one that fails loses only its own rewards."""

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reward_matrix import RewardMatrix, put_together
from skipping_clock import SkippingClock

from grpo_runtime.errors import UserError
from grpo_runtime.process.user_code import FunctionFile
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rewards.types import (
    BuiltinFunction,
    BuiltinOptions,
    FailureKind,
    ImportedFunction,
    RewardFunction,
    RewardRequest,
)
from grpo_runtime.rewards.worker import WorkerGroup

HUNG_SECONDS = 120.0
"""For what comes in a moment, when it never comes."""


def example(name: str, *, timeout_seconds: float = 30.0) -> RewardFunction:
    return RewardFunction(
        name=name, source=ImportedFunction(path=f"reward_examples:{name}"), timeout_seconds=timeout_seconds
    )


def request(*completions: str, prompts: list[Any] | None = None, **columns: list[Any]) -> RewardRequest:
    return RewardRequest(
        prompts=["a="] * len(completions) if prompts is None else prompts,
        completions=list(completions),
        completion_ids=[list(range(len(completion))) for completion in completions],
        columns=columns,
        step=3,
        total_steps=200,
    )


async def score(function: RewardFunction, asked: RewardRequest) -> RewardMatrix:
    async with RewardPool((function,)) as pool:
        return await scored(pool, asked)


async def scored(pool: RewardPool, *chunks: RewardRequest) -> RewardMatrix:
    """A step that is cut into `chunks`."""
    return put_together(pool, await asyncio.gather(*map(pool.submit, chunks)), step=3)


def column(matrix: RewardMatrix, index: int = 0) -> list[float | None]:
    return [row[index] for row in matrix.values]


@pytest.mark.parametrize(
    ("builtin", "expected"),
    [("exact_match", [1.0, 0.0, 0.0, None]), ("char_accuracy", [1.0, 0.5, 0.8, None])],
)
async def test_built_in_rewards_compare_with_the_answer(builtin: str, expected: list[float | None]) -> None:
    function = RewardFunction(name="correct", source=BuiltinFunction(name=builtin))
    asked = request("dddd", "dd", "dddde", "x", answer=["dddd", "dddd", "dddd", None])
    assert column(await score(function, asked)) == expected


async def test_a_built_in_reward_reads_the_answer_from_the_column_the_dataset_names() -> None:
    function = RewardFunction(
        name="a", source=BuiltinFunction(name="exact_match", options=BuiltinOptions(answer_column="gold"))
    )
    assert column(await score(function, request("8", "9", gold=[8, 8]))) == [1.0, 0.0]


async def test_functions_are_asked_together_and_give_one_column_each() -> None:
    functions = (
        RewardFunction(name="correct", source=BuiltinFunction(name="exact_match")),
        example("length"),
        example("slow_length"),
    )
    async with RewardPool(functions) as pool:
        matrix = await scored(pool, request("aaaa", "b", answer=["aaaa", "aaaa"]))
    assert matrix.names == ("correct", "length", "slow_length")
    assert matrix.values == ((1.0, 4.0, 4.0), (0.0, 1.0, 1.0))
    assert matrix.failures == ()


async def test_a_function_gets_everything_that_trl_passes() -> None:
    matrix = await score(
        example("everything_trl_passes"), request("ab", "abc", answer=["x", "y"], level=[1, 2])
    )
    assert column(matrix) == [3.2 + 2, 3.2 + 3]
    assert matrix.metrics == {
        "seen/level": 1.5,
        "rewards/everything_trl_passes/failures": 0,
        "rewards/everything_trl_passes/failed_calls": 0,
    }


async def test_a_function_that_names_its_arguments_gets_only_those() -> None:
    assert column(await score(example("takes_no_extras"), request("a=b", "b", answer=["x", "y"]))) == [
        1.0,
        0.0,
    ]


async def test_a_function_that_names_the_callables_of_trl_without_the_rest_is_called() -> None:
    assert column(await score(example("notes_what_it_read"), request("8", "x"))) == [1.0, 0.0]


async def test_completions_of_chats_are_messages() -> None:
    chat = [{"role": "user", "content": "hi"}]
    assert column(await score(example("chat_length"), request("four", prompts=[chat]))) == [4.0]


async def test_none_means_that_a_function_does_not_apply() -> None:
    matrix = await score(example("only_some"), request("yes", "no"))
    assert column(matrix) == [1.0, None]
    assert matrix.failures == ()


async def test_what_a_function_prints_and_reads_does_not_touch_the_protocol() -> None:
    assert column(await score(example("noisy"), request("a", "b"))) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises_on_no", "RuntimeError: I will not"),
        ("dies_on_no", "its process ended with code 3"),
        ("dies_in_mid_answer_on_no", "its process ended with code 3"),
    ],
)
async def test_a_function_that_fails_gives_no_rewards_in_that_step_and_works_in_the_next(
    name: str, reason: str
) -> None:
    async with RewardPool((example(name), example("length"))) as pool:
        matrix = await scored(pool, request("yes", "no"))
        assert matrix.values == ((None, 3.0), (None, 2.0))
        assert matrix.metrics == {
            f"rewards/{name}/failures": 2,
            f"rewards/{name}/failed_calls": 1,
            "rewards/length/failures": 0,
            "rewards/length/failed_calls": 0,
        }
        (failure,) = matrix.failures
        assert failure.name == name
        assert failure.reason.startswith(reason)
        assert failure.num_samples == 2
        assert failure.sample == {"prompt": "a=", "completion": "yes"}
        assert column(await scored(pool, request("yes"))) == [1.0]


async def test_a_hanging_function_is_ended_at_its_deadline_with_the_processes_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child_file, clock = tmp_path / "child", SkippingClock(monkeypatch)
    async with RewardPool((example("hangs_on_no", timeout_seconds=30.0),)) as pool:
        async with asyncio.timeout(HUNG_SECONDS):
            scoring = asyncio.ensure_future(scored(pool, request("no", child_file=[str(child_file)])))
            matrix = await clock.skip_once(lambda: is_written(child_file), during=scoring, seconds=30.0)
        assert column(matrix) == [None]
        assert matrix.failures[0].reason == "it did not answer within 30 s"
        assert column(await scored(pool, request("yes", child_file=[""]))) == [1.0]
    assert not is_running(int(child_file.read_text()))


@pytest.mark.parametrize(
    ("at_the_next_import", "reason"),
    [
        ("time.sleep(600)", "rewards: starting mine took more than 60 s"),
        ("os._exit(9)", "rewards: starting mine ended the process: its process ended with code 9"),
    ],
)
async def test_a_process_that_cannot_be_replaced_yet_costs_rewards_and_is_started_again_for_the_next_call(
    tmp_path: Path, at_the_next_import: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second import of the module is the one that fails."""
    counter = tmp_path / "imports"
    code = f"""
        import os, pathlib, time
        counter = pathlib.Path({str(counter)!r})
        number = len(counter.read_text()) if counter.exists() else 0
        counter.write_text("x" * (number + 1))
        if number == 1:
            {at_the_next_import}
        def reward(completions, **_):
            if "no" in completions:
                os._exit(3)
            return [1.0] * len(completions)
    """
    function = code_in(tmp_path / "mine.py", textwrap.dedent(code))
    group = WorkerGroup(function, start_timeout_seconds=60.0)

    async def score() -> list[Column]:
        return [await group.score(request(text)) for text in ("no", "yes", "yes")]

    await group.start()
    try:
        scoring = asyncio.ensure_future(score())
        if "sleep" in at_the_next_import:
            clock = SkippingClock(monkeypatch)
            await clock.skip_once(lambda: counter.read_text() == "xx", during=scoring, seconds=60.0)
        columns = await scoring
    finally:
        await group.close()
    assert [column.values for column in columns] == [[None], [None], [1.0]]
    assert [failure.kind for failure in columns[1].failures] == [FailureKind.LOST]
    assert columns[1].failures[0].reason == reason


async def test_each_value_that_is_no_reward_counts_as_not_scored() -> None:
    matrix = await score(example("rubbish"), request(*"abcdefghi"))
    assert column(matrix) == [None, None, None, None, 1.0, None, None, None, None]
    (failure,) = matrix.failures
    assert failure.num_samples == 6
    assert "'high', which is text" in failure.reason
    assert failure.sample["completion"] == "a"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("too_few", "returned 1 rewards for 2 completions"), ("no_list", "returned a float for 2 completions")],
)
async def test_a_result_of_the_wrong_shape_gives_no_reward_to_any_completion(name: str, reason: str) -> None:
    matrix = await score(example(name), request("a", "b"))
    assert column(matrix) == [None, None]
    assert reason in matrix.failures[0].reason


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("no_such_module:reward", "needs module no_such_module, which is not in this image"),
        ("reward_examples:no_such_reward", "module reward_examples has no attribute no_such_reward: it has"),
        (
            "reward_examples:NOT_A_FUNCTION",
            "NOT_A_FUNCTION of module reward_examples is a int, not a function",
        ),
    ],
)
async def test_a_function_that_does_not_exist_fails_the_start_with_its_name(path: str, sentence: str) -> None:
    pool = RewardPool((RewardFunction(name="mine", source=ImportedFunction(path=path)),))
    with pytest.raises(UserError, match=r"^rewards") as refusal:
        await pool.__aenter__()
    assert sentence in str(refusal.value)


async def test_failures_up_to_max_failure_share_are_tolerated_and_one_more_ends_the_run() -> None:
    function = replace(example("rubbish"), max_failure_share=0.5)
    tolerated = await score(function, request("a", "b", "c", "d", "e", "f"))
    assert tolerated.metrics["rewards/rubbish/failures"] == 3
    with pytest.raises(UserError) as end:
        await score(function, request("a", "b", "c"))
    assert str(end.value) == (
        "reward rubbish failed on 2 of 3 completions of step 4 (67%), more than its maxFailureShare of 50%: "
        "a reward is 'high', which is text"
    )


async def test_a_run_that_ends_because_of_a_reward_says_what_the_function_raised() -> None:
    function = replace(example("raises_on_no"), max_failure_share=0.9)
    with pytest.raises(UserError, match=r"raises_on_no failed on 2 of 2 .* RuntimeError: I will not$"):
        await score(function, request("yes", "no"))


async def test_max_failure_share_is_about_the_failures_of_its_own_function() -> None:
    functions = (replace(example("only_some"), max_failure_share=0.0), example("rubbish"))
    async with RewardPool(functions) as pool:
        matrix = await scored(pool, request("yes", "no"))
    assert matrix.values == ((1.0, None), (None, None))


def code_in(path: Path, text: str, *, function: str = "reward") -> RewardFunction:
    path.write_text(text)
    code = FunctionFile(path=path, function=function, place="key reward.py of ConfigMap mine")
    return RewardFunction(name="mine", source=code)


async def test_code_from_a_config_map_is_run_in_the_worker_and_nowhere_else(tmp_path: Path) -> None:
    text = (
        "import os\npid = os.getpid()\n\ndef reward(completions, **_):\n    return [pid] * len(completions)\n"
    )
    (pid,) = column(await score(code_in(tmp_path / "reward.py", text), request("a")))
    assert pid is not None and pid != os.getpid()
    assert "grpo_reward_code" not in sys.modules


async def test_code_under_a_key_without_suffix_may_define_dataclasses(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n"
        "@dataclass\nclass Weight:\n    value: float\n\n"
        "def reward(completions, **_):\n    return [Weight(2.0).value for _ in completions]\n"
    )
    assert column(await score(code_in(tmp_path / "code", text), request("a"))) == [2.0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def other():\n    pass\n", "key reward.py of ConfigMap mine has no attribute reward: it has other"),
        ("import no_such_module\n", "needs module no_such_module, which is not in this image"),
        ("import os\nos._exit(9)\n", "starting mine ended the process: its process ended with code 9"),
        ("1 / 0\n", "running key reward.py of ConfigMap mine failed: ZeroDivisionError: division by zero"),
        ("def reward(:\n", "running key reward.py of ConfigMap mine failed: SyntaxError"),
        ("reward = 3\n", "reward of key reward.py of ConfigMap mine is a int, not a function"),
    ],
)
async def test_code_that_cannot_be_used_fails_the_start(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=r"^rewards: ") as refusal:
        await score(code_in(tmp_path / "reward.py", text), request("a"))
    assert sentence in str(refusal.value)


async def test_a_key_that_the_config_map_lacks_is_refused_with_the_keys_it_has(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("")
    code = FunctionFile(
        path=tmp_path / "reward.py", function="reward", place="key reward.py of ConfigMap mine"
    )
    with pytest.raises(UserError, match=r"reward\.py of ConfigMap mine is not there: .* has rewards\.py"):
        await score(RewardFunction(name="mine", source=code), request("a"))


async def test_a_step_larger_than_a_pipe_holds_goes_through() -> None:
    matrix = await score(example("length"), request(*["x" * 5_000] * 100))
    assert column(matrix) == [5_000.0] * 100


def is_written(path: Path) -> bool:
    return path.exists() and path.read_text() != ""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_worker_that_hangs_does_not_outlive_a_trainer_that_was_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    trainer = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("fake_scoring_trainer.py")), str(pid_file)]
    )
    deadline = time.monotonic() + HUNG_SECONDS
    while not pid_file.exists():
        assert time.monotonic() < deadline and trainer.poll() is None
        time.sleep(0.05)
    trainer.kill()
    trainer.wait()
    while is_running(int(pid_file.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)
