"""The process of a reward function: its event loop, and what the function may leave running there."""

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from reward_matrix import RewardMatrix, put_together

from grpo_runtime.process.user_code import FunctionFile
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rewards.types import ImportedFunction, RewardFunction, RewardRequest

HUNG_SECONDS = 120.0
"""For what comes in a moment, when it never comes."""


def example(name: str) -> RewardFunction:
    return RewardFunction(
        name="mine", source=ImportedFunction(path=f"reward_examples:{name}"), timeout_seconds=20.0
    )


def code_in(path: Path, text: str) -> RewardFunction:
    path.write_text(textwrap.dedent(text))
    code = FunctionFile(path=path, function="reward", place=f"key {path.name} of ConfigMap mine")
    return RewardFunction(name="mine", source=code, timeout_seconds=60.0)


async def score(pool: RewardPool, *completions: str, **columns: str) -> RewardMatrix:
    """A step of one group."""
    request = RewardRequest(
        prompts=["a="] * len(completions),
        completions=list(completions),
        completion_ids=[[1]] * len(completions),
        columns={name: [value] * len(completions) for name, value in columns.items()},
        step=0,
        total_steps=200,
    )
    return put_together(pool, [await pool.submit(request)], step=0)


@pytest.mark.parametrize("name", ["one_at_a_time", "by_a_task_that_lives_on"])
async def test_what_an_async_function_keeps_of_its_loop_works_in_every_call(name: str) -> None:
    async with RewardPool((example(name),)) as pool:
        for _ in range(3):
            matrix = await score(pool, "a", "bb", "ccc")
            assert (matrix.values, matrix.failures) == (((1.0,), (2.0,), (3.0,)), ())


async def test_a_task_that_a_function_has_begun_goes_on_between_two_calls() -> None:
    async with RewardPool((example("leaves_a_server"),)) as pool:
        [[port]] = (await score(pool, "a")).values
        assert port is not None
        async with asyncio.timeout(HUNG_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            assert await reader.read() == b"here"
            writer.close()


async def test_a_task_that_a_module_begins_as_it_is_imported_runs(tmp_path: Path) -> None:
    text = """
        import asyncio
        queue = asyncio.Queue()
        async def answer():
            while True:
                (await queue.get()).set_result(7.0)
        task = asyncio.get_event_loop().create_task(answer())
        async def reward(completions, **_):
            value = asyncio.get_running_loop().create_future()
            await queue.put(value)
            return [await value] * len(completions)
    """
    async with RewardPool((code_in(tmp_path / "reward.py", text),)) as pool:
        assert (await score(pool, "a")).values == ((7.0,),)


async def test_a_function_that_is_no_coroutine_runs_in_the_main_thread_and_may_run_a_loop() -> None:
    async with RewardPool((example("runs_a_loop_of_its_own"),)) as pool:
        for _ in range(2):
            assert (await score(pool, "a", "bb")).values == ((1.0,), (2.0,))


async def test_a_call_whose_await_is_cancelled_fails_and_the_process_goes_on() -> None:
    async with RewardPool((example("awaits_what_is_cancelled_on_no"),)) as pool:
        before = await score(pool, "a")
        failed = await score(pool, "no")
        assert failed.values == ((None,),)
        assert failed.failures[0].reason.startswith("CancelledError")
        assert await score(pool, "a") == before


def test_a_worker_imports_nothing_of_the_spec_and_nothing_large() -> None:
    """Each function has a process, and each of them would take the time and the memory."""
    code = """
import sys
import grpo_runtime.rewards.worker
from grpo_runtime.rewards.builtin import make_builtin
from grpo_runtime.rewards.types import BuiltinOptions
make_builtin("exact_match", options=BuiltinOptions())
print(*sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    large = {"grpo_api.v1alpha1.spec", "torch", "transformers", "numpy", "aiohttp", "huggingface_hub"}
    assert large & set(found.stdout.split()) == set()
