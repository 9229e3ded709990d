"""An event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from polling import wait_until

from grpo_runtime.process.background import LoopThread


async def name_of_thread() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


async def test_work_runs_in_its_thread_and_what_it_raises_is_raised_here() -> None:
    async def fails() -> None:
        raise ValueError("no")

    thread = LoopThread("mine")
    assert await thread.run(name_of_thread()) == thread.begin(name_of_thread()).result() == "mine"
    with pytest.raises(ValueError, match="no"):
        await thread.run(fails())
    await thread.close()


async def test_what_is_entered_there_is_left_there_whatever_ends_the_body() -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def noted() -> AsyncIterator[str]:
        seen.append(await name_of_thread())
        yield "entered"
        seen.append(await name_of_thread())

    thread = LoopThread("mine")
    with pytest.raises(ValueError, match="no"):
        async with thread.entered(noted()) as value:
            assert (value, seen) == ("entered", ["mine"])
            raise ValueError("no")
    assert seen == ["mine", "mine"]
    await thread.close()


@pytest.mark.parametrize("ends_by", ["cancelled here", "closed"])
async def test_work_that_is_given_up_is_cancelled_there(ends_by: str) -> None:
    seen: list[str] = []

    async def waits() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            seen.append("cancelled")

    thread = LoopThread("mine")
    work = asyncio.ensure_future(thread.run(waits()))
    await asyncio.sleep(0)
    await asyncio.to_thread(wait_until, lambda: seen == ["begun"], "the work has begun")
    if ends_by == "cancelled here":
        work.cancel()
    else:
        await thread.close()
    with pytest.raises(asyncio.CancelledError):
        await work
    # it is over there when it is over here
    assert seen == ["begun", "cancelled"]
    if ends_by == "cancelled here":
        await thread.close()
    assert "mine" not in {one.name for one in threading.enumerate()}


async def test_work_that_is_cancelled_before_it_began_is_over_as_well() -> None:
    async with LoopThread("mine") as thread:
        work = asyncio.ensure_future(thread.run(name_of_thread()))
        await asyncio.sleep(0)
        work.cancel()
        async with asyncio.timeout(10):
            with pytest.raises(asyncio.CancelledError):
                await work
