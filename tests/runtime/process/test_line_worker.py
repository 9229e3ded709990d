"""What is said of a worker whose code writes over its protocol, or ends it. Right answers are in the tests of
rewards and of rollout functions."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_runtime.process.line_worker import (
    MAX_REASON_CHARACTERS,
    LineProcess,
    LineWorker,
    WorkerFailedError,
    WorkerProgram,
    failure_in,
    failure_reply,
)

FOLDER = str(Path(__file__).parent)
HUNG_SECONDS = 30.0


def scripted(what: str = "starting it") -> WorkerProgram:
    return WorkerProgram(module="scripted_worker", config="{}", what=what, environment={"PYTHONPATH": FOLDER})


@asynccontextmanager
async def started() -> AsyncIterator[LineProcess]:
    process = LineProcess(scripted())
    await process.start()
    try:
        yield process
    finally:
        await process.close()


def line(**script: Any) -> bytes:
    return json.dumps(script).encode() + b"\n"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ({"writes": '{"reward": 1.\n'}, r"its process wrote no answer but b'{\"reward\": 1\.\\n'"),
        ({"writes": "[1.0]\n"}, "its process wrote no answer but"),
        ({"writes": f"{'[' * 100_000}\n"}, r"its process wrote no answer but b'\[{98}\.\.\."),
        ({"writes": '"\xff"\n'}, "its process wrote no answer but"),
        ({"writes": "x" * (1 << 20), "times": 65}, "its answer is longer than 67108864 bytes"),
        ({"ends": signal.SIGKILL}, "its process ended with code -9"),
    ],
    ids=["half", "a list", "deep", "no text", "huge", "killed"],
)
async def test_what_is_no_answer_is_told_as_it_is(script: dict[str, Any], sentence: str) -> None:
    async with started() as process:
        await process.send(line(**script))
        with pytest.raises(WorkerFailedError, match=sentence):
            await process.read()


def test_a_failure_is_no_longer_than_a_worker_makes_it_whatever_its_code_has_written() -> None:
    own = failure_reply(ValueError("x" * 5000), trace=f"{'y' * 5000}z")
    assert failure_in(own) == (own["error"], own["traceback"])
    sentence, trace = failure_in({"error": "x" * 10**7, "traceback": [f"{'y' * 10**7}z"]})
    assert (len(sentence), len(trace)) == (MAX_REASON_CHARACTERS, MAX_REASON_CHARACTERS)
    assert trace.endswith("yz']")
    assert failure_in({"error": 3}) == ("3", "")


async def test_a_worker_that_wrote_no_answer_is_started_again_for_the_next_call() -> None:
    worker = LineWorker(scripted())
    try:
        with pytest.raises(WorkerFailedError, match="wrote no answer"):
            await worker.ask(line(writes="1\n"), timeout_seconds=HUNG_SECONDS)
        assert not worker.is_started
        answer = await worker.ask(line(writes='{"reward": 1.0}\n'), timeout_seconds=HUNG_SECONDS)
        assert answer == {"reward": 1.0}
    finally:
        await worker.close()
