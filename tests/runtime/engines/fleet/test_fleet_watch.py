"""What the fleet makes of engines that it looks at: dead, hung, silent, restarted, busy or taken over."""

import asyncio
import logging

import pytest
from fake_engine_server import FakeEngine
from fake_vllm import FakeVLLM
from fleet_builder import fleet_of, requests, sync, until, versions

from grpo_runtime.engines.fleet.engine_client import EngineConflictError
from grpo_runtime.engines.routes import IS_PAUSED_PATH, UPDATE_PATH

pytestmark = pytest.mark.usefixtures("pod_environment")


def num_looks(vllm: FakeVLLM) -> int:
    """How often the engine core was asked for a sign of life."""
    return vllm.reached.count(f"GET {IS_PAUSED_PATH}")


def num_syncs(vllm: FakeVLLM) -> int:
    return vllm.reached.count(f"POST {UPDATE_PATH}")


async def test_an_engine_that_restarts_gets_the_newest_weights_before_it_serves() -> None:
    first, second = FakeEngine("a"), FakeEngine("b")
    async with fleet_of(first, second) as fleet:
        await sync(fleet, step=1)
        second.hang_up()
        await until(lambda: fleet.counts().current == 1)
        second.restart()
        await until(lambda: fleet.counts().current == 2)
        assert (second.vllm.weights, second.vllm.weight_version) == (first.vllm.weights, "1.1")
        assert fleet.num_lost == 1
        assert versions(await fleet.generate(requests(8))) == {"1.1"}


async def test_an_engine_that_is_silent_for_a_moment_goes_on_where_it_was() -> None:
    engine = FakeEngine("a")
    async with fleet_of(engine) as fleet:
        engine.hang_up()
        await until(lambda: fleet.counts().current == 0)
        assert fleet.counts().known == 1
        engine.answer_again()
        await until(lambda: fleet.counts().current == 1)
        assert (fleet.num_lost, num_syncs(engine.vllm)) == (0, 1)


async def test_an_engine_whose_core_died_is_lost() -> None:
    good, dead = FakeEngine("good"), FakeEngine("dead")
    async with fleet_of(good, dead) as fleet:
        dead.vllm.errored = True
        await until(lambda: fleet.counts().current == 1)
        assert (fleet.counts().known, fleet.num_lost) == (1, 1)


async def test_an_engine_that_receives_weights_is_not_asked_for_a_sign_of_life() -> None:
    """Its core answers nothing meanwhile, and it would be taken for lost."""
    busy, other = FakeEngine("busy"), FakeEngine("other")
    async with fleet_of(busy, other) as fleet:
        is_delivered = asyncio.Event()
        busy.vllm.during[UPDATE_PATH] = is_delivered.wait
        syncing = asyncio.ensure_future(sync(fleet, step=1))
        await until(lambda: num_syncs(busy.vllm) == 2)
        before, looks = num_looks(busy.vllm), num_looks(other.vllm)
        await until(lambda: num_looks(other.vllm) >= looks + 3)
        assert num_looks(busy.vllm) == before
        is_delivered.set()
        assert (await syncing).synced == ("busy", "other")


async def test_a_look_that_began_before_a_sync_does_not_undo_it() -> None:
    engine = FakeEngine("a")
    async with fleet_of(engine) as fleet:
        may_answer = asyncio.Event()
        engine.vllm.during[IS_PAUSED_PATH] = may_answer.wait
        looks = num_looks(engine.vllm)
        await until(lambda: num_looks(engine.vllm) == looks + 1)
        await sync(fleet, step=1)
        may_answer.set()
        await until(lambda: num_looks(engine.vllm) >= looks + 3)
        assert num_syncs(engine.vllm) == 2
        assert fleet.counts().current == 1


async def test_the_log_tells_once_of_engines_that_come_or_go_and_of_no_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steady, lost = FakeEngine("steady"), FakeEngine("lost")
    caplog.set_level(logging.INFO, logger="grpo_runtime.engines.fleet.roster")
    async with fleet_of(steady, lost) as fleet:
        caplog.clear()
        for step in (1, 2):
            await sync(fleet, step=step)
        assert caplog.messages == []
        lost.vllm.errored = True
        await until(lambda: fleet.num_lost == 1)
        lost.restart()
        await until(lambda: fleet.counts().current == 2)
        assert caplog.messages == [
            f"engine lost at {lost.address} is Lost",
            f"engine lost at {lost.address} is Stale",
        ]


async def test_a_fleet_whose_attempt_is_over_says_so() -> None:
    engine = FakeEngine("a")
    async with fleet_of(engine) as fleet:
        await engine.note_attempt(attempt=2)
        with pytest.raises(EngineConflictError, match="attempt 1 is over: engine a belongs to attempt 2"):
            await until(lambda: fleet.counts().current == 0)
