"""A process whose code writes over the lines of its conversations, or ends it."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from grpo_runtime.process.line_worker import WorkerFailedError, WorkerProgram
from grpo_runtime.rollouts.function.function_process import FunctionProcess

FOLDER = str(Path(__file__).parents[2] / "process")
HUNG_SECONDS = 30.0


async def started() -> FunctionProcess:
    process = FunctionProcess(
        WorkerProgram(
            module="scripted_worker",
            config="{}",
            what="starting it",
            environment={"PYTHONPATH": FOLDER},
        )
    )
    await process.start()
    return process


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ({"writes": "{}\n"}, "its process wrote {}, which is of no completion"),
        ({"writes": '{"id": [0], "is_done": true}\n'}, "which is of no completion"),
        ({"writes": '{"id": "0", "is_done": true}\n'}, "which is of no completion"),
        ({"writes": "done\n"}, "its process wrote no answer but b'done"),
        ({"ends": signal.SIGKILL}, "its process ended with code -9"),
    ],
)
async def test_all_conversations_learn_why_their_process_has_ended(
    script: dict[str, Any], sentence: str
) -> None:
    process = await started()
    with process.conversation(timeout_seconds=HUNG_SECONDS) as conversation:
        begun = asyncio.create_task(conversation.begin(script))
        async with asyncio.timeout(HUNG_SECONDS):
            assert sentence in await process.ended
        begun.cancel()
    await process.close(why="the test is over")


async def test_a_line_of_no_open_conversation_is_nobodys() -> None:
    process = await started()
    with process.conversation(timeout_seconds=HUNG_SECONDS) as conversation:
        said = await conversation.begin({"writes": '{"id": 7, "is_done": true}\n{"id": 0, "is_cut": true}\n'})
    assert said == {"id": 0, "is_cut": True}
    await process.close(why="the test is over")


async def test_a_conversation_whose_line_does_not_come_is_late() -> None:
    process = await started()
    with (
        process.conversation(timeout_seconds=0.2) as conversation,
        pytest.raises(WorkerFailedError, match=r"it did not answer within 0\.2 s"),
    ):
        await conversation.begin({"writes": ""})
    await process.close(why="the test is over")
