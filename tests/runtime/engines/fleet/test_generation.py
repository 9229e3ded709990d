"""How far a generation has come, as the trainer can tell at any moment."""

import asyncio
import time

import pytest
from fake_engine_server import FakeEngine
from fleet_builder import fleet_of, hang, requests, seeds, until

from grpo_runtime.engines.fleet.core import FleetCore
from grpo_runtime.engines.routes import SAMPLE_PATH
from grpo_runtime.rollouts.interface import Generation

pytestmark = pytest.mark.usefixtures("pod_environment")


def generation_of(fleet: FleetCore) -> Generation:
    found = fleet.generation()
    assert found is not None
    return found


async def test_engines_that_hang_are_named_with_what_they_hold_while_others_have_finished() -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad) as fleet:
        assert fleet.generation() is None
        released = asyncio.Event()

        async def hang_until_released() -> None:
            await released.wait()

        bad.vllm.during[SAMPLE_PATH] = hang_until_released
        work = asyncio.ensure_future(fleet.generate(requests(8)))
        await until(lambda: fleet.generation() is not None and generation_of(fleet).num_done == 4)
        await until(lambda: generation_of(fleet).given == {"bad": 4})
        before = generation_of(fleet)
        assert (before.num_samples, before.num_waiting) == (8, 0)
        await until(lambda: generation_of(fleet).quiet_seconds > before.quiet_seconds + 0.1)
        assert generation_of(fleet).num_done == 4
        released.set()
        assert seeds(await work) == list(range(100, 108))
        assert fleet.generation() is None


async def test_each_sample_that_is_finished_begins_the_quiet_time_again() -> None:
    engine = FakeEngine("slow")
    async with fleet_of(engine, max_in_flight=1) as fleet:
        turns: asyncio.Queue[None] = asyncio.Queue()
        engine.vllm.during[SAMPLE_PATH] = turns.get
        began_at = time.monotonic()
        work = asyncio.ensure_future(fleet.generate(requests(3)))
        for num_done in range(3):
            await until(lambda: fleet.generation() is not None)
            await until(lambda expected=num_done: generation_of(fleet).num_done == expected)
            quiet_seconds = generation_of(fleet).quiet_seconds
            assert quiet_seconds <= time.monotonic() - began_at
            await until(lambda: generation_of(fleet).quiet_seconds > 0.1)
            assert generation_of(fleet).num_waiting == 2 - num_done
            began_at = time.monotonic()
            turns.put_nowait(None)
        assert len(await work) == 3


async def test_a_call_that_is_given_up_leaves_no_generation_behind() -> None:
    engine = FakeEngine("a")
    async with fleet_of(engine) as fleet:
        engine.vllm.during[SAMPLE_PATH] = hang
        work = asyncio.ensure_future(fleet.generate(requests(2)))
        await until(lambda: fleet.generation() is not None)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert fleet.generation() is None


async def test_of_a_call_for_several_completions_each_counts() -> None:
    engine, turns = FakeEngine("only"), asyncio.Queue[None]()
    async with fleet_of(engine, max_in_flight=2) as fleet:
        engine.vllm.during[SAMPLE_PATH] = turns.get
        work = asyncio.ensure_future(fleet.generate(requests(8)))
        await until(lambda: fleet.generation() is not None)
        turns.put_nowait(None)
        await until(lambda: generation_of(fleet).num_done == 2)
        for _ in range(3):
            turns.put_nowait(None)
        assert len(await work) == 8
