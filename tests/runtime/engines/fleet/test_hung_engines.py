"""Engines that freeze while they sample: their work goes to others, and they come back through a sync."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fake_engine_server import FakeConnection, FakeEngine, fake_backend
from fleet_builder import fleet_of, hang, requests, seeds, sync, until, versions
from skipping_clock import SkippingClock

from grpo_runtime.engines.fleet.core import FleetCore
from grpo_runtime.engines.routes import IS_PAUSED_PATH, SAMPLE_PATH, UPDATE_PATH
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

pytestmark = pytest.mark.usefixtures("pod_environment")

SOON = {"hung_after_seconds": 0.5, "probe_timeout_seconds": 0.3}
LATE = {"hung_after_seconds": 2.0, "probe_timeout_seconds": 0.5}
"""For engines that must not be taken for hung, on a machine that has much else to do."""


def freeze_core(engine: FakeEngine) -> None:
    engine.freeze_core()


def freeze_server(engine: FakeEngine) -> None:
    engine.freeze_server()


def stop_sampling(engine: FakeEngine) -> None:
    """Its core answers, and its requests go nowhere."""
    engine.freeze_core()
    del engine.vllm.during[IS_PAUSED_PATH]


async def freeze_in_a_step(fleet: FleetCore, engine: FakeEngine) -> "asyncio.Task[list[object]]":
    """Begin a step, and freeze the core of an engine that has a part of it."""
    await fleet.generate(requests(8))
    engine.freeze_core()
    step = asyncio.ensure_future(fleet.generate(requests(8)))
    await until(lambda: engine.vllm.num_sampling > 0)
    return step


@pytest.mark.parametrize("freeze", [freeze_core, freeze_server, stop_sampling])
async def test_the_requests_of_a_hung_engine_go_to_the_others(
    freeze: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(freeze)
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad, **SOON) as fleet:
        await fleet.generate(requests(8))
        in_work = asyncio.Event()
        may_go_on = asyncio.Event()

        async def sample() -> None:
            in_work.set()
            await may_go_on.wait()

        bad.vllm.during[SAMPLE_PATH] = sample
        step = asyncio.ensure_future(fleet.generate(requests(8)))
        await in_work.wait()
        freeze(bad)
        assert seeds(await step) == list(range(100, 108))
        assert (fleet.num_resent, fleet.num_lost, fleet.num_stale_answers) == (4, 0, 0)
        assert "engine bad hangs, its requests go to other engines: it" in caplog.text


async def test_requests_whose_answers_are_lost_are_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad, **SOON) as fleet:
        await fleet.generate(requests(8))
        bad.num_to_lose = 1
        assert seeds(await fleet.generate(requests(8))) == list(range(100, 108))
        assert (fleet.num_resent > 0, fleet.num_lost, fleet.num_stale_answers) == (True, 0, 0)
        assert "engine bad hangs, its requests go to other engines: it works on none" in caplog.text
        await until(lambda: fleet.counts().current == 2)


async def test_the_only_engine_is_asked_again_for_what_was_lost() -> None:
    engine = FakeEngine("only")
    async with fleet_of(engine, **SOON) as fleet:
        await fleet.generate(requests(8))
        num_asked = len(engine.vllm.asked)
        engine.num_to_lose = 1
        assert seeds(await fleet.generate(requests(8))) == list(range(100, 108))
        assert len(engine.vllm.asked) > num_asked
        assert fleet.num_lost == 0


async def test_an_engine_that_thaws_is_synced_before_it_serves_again() -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad, **SOON) as fleet:
        assert len(await (await freeze_in_a_step(fleet, bad))) == 8
        instance = await good.instance()
        assert fleet.workers().keys() == {instance}
        assert fleet.counts().known == 2
        assert fleet.counts().hung is None, "it has not been for long"

        # training continues, and nobody waits for the hung one
        assert (await sync(fleet, step=1)).synced == ("good",)
        assert versions(await fleet.generate(requests(8))) == {"1.1"}
        bad.vllm.reached.clear()
        bad.thaw()
        await until(lambda: fleet.counts().current == 2)
        assert bad.vllm.weight_version == "1.1"
        assert f"POST {UPDATE_PATH}" in bad.vllm.reached
        assert versions(await fleet.generate(requests(8))) == {"1.1"}
        assert (fleet.num_lost, fleet.num_stale_answers) == (0, 0)


async def test_the_progress_names_an_engine_that_stays_hung_until_it_works_again() -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad, **SOON, hung_reported_after_seconds=0.2) as fleet:
        before = datetime.now(UTC) - timedelta(seconds=1)  # dates are whole seconds
        await (await freeze_in_a_step(fleet, bad))
        await until(lambda: fleet.counts().hung is not None)
        [told] = fleet.counts().hung or ()
        assert (told.name, told.instance) == ("bad", await bad.instance())
        assert told.why == "its engine core does not answer"
        assert before < told.since < datetime.now(UTC)
        bad.thaw()
        await until(lambda: fleet.counts().current == 2)
        assert fleet.counts().hung is None


async def test_the_progress_names_an_engine_that_freezes_in_the_middle_of_a_transfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    clock, seconds, is_delivered = SkippingClock(monkeypatch), 4.0, asyncio.Event()

    class Telling(FakeConnection):
        async def update(self, weights: HostCopy) -> None:
            await super().update(weights)
            is_delivered.set()

    async def never() -> None:
        # the other one, which has the same deadline, is done
        await is_delivered.wait()
        clock.skip(seconds)
        await hang()

    backend = fake_backend(Telling)
    reported: dict[str, Any] = {"hung_reported_after_seconds": 0.2, "sync_timeout_seconds": seconds}
    async with fleet_of(good, bad, backend=backend, **SOON, **reported) as fleet:
        is_delivered.clear()
        bad.vllm.during[UPDATE_PATH] = never
        assert (await sync(fleet, step=1)).synced == ("good",)
        await until(lambda: fleet.counts().hung is not None)
        [told] = fleet.counts().hung or ()
        assert told.name == "bad"
        assert told.why.startswith("it did not finish a weight sync: ")


async def test_an_engine_that_thaws_in_the_same_step_is_synced_too() -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad, **SOON) as fleet:
        await (await freeze_in_a_step(fleet, bad))
        num_updates = bad.vllm.reached.count(f"POST {UPDATE_PATH}")
        bad.thaw()
        await until(lambda: fleet.counts().current == 2)
        assert bad.vllm.reached.count(f"POST {UPDATE_PATH}") == num_updates + 1


async def test_an_engine_that_restarts_instead_of_thawing_is_synced() -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad, **SOON) as fleet:
        await (await freeze_in_a_step(fleet, bad))
        bad.restart()
        await until(lambda: fleet.counts().current == 2)
        assert (bad.vllm.weight_version, fleet.num_lost) == ("1.0", 1)


async def test_a_hung_engine_is_lost_at_last() -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad, **SOON, lost_after_seconds=1.0) as fleet:
        await (await freeze_in_a_step(fleet, bad))
        await until(lambda: fleet.counts().known == 1)
        assert fleet.num_lost == 1


@pytest.mark.parametrize("is_hung_before", [False, True])
async def test_an_engine_that_has_ended_is_not_called_hung(
    is_hung_before: bool, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad, **SOON) as fleet:
        may_go_on = asyncio.Event()
        good.vllm.during[SAMPLE_PATH] = may_go_on.wait
        step = asyncio.ensure_future(fleet.generate(requests(8)))
        await until(lambda: good.vllm.num_sampling > 0)
        if is_hung_before:
            freeze_server(bad)
            await until(lambda: "engine bad hangs" in caplog.text)
        bad.hang_up()
        await until(lambda: "engine bad has ended or cannot be reached" in caplog.text)
        generation = fleet.generation()
        assert generation is not None and generation.hung == {}
        assert caplog.text.count("engine bad has ended") == 1
        assert caplog.text.count("engine bad hangs") == int(is_hung_before)
        may_go_on.set()
        assert len(await step) == 8


async def test_a_step_waits_for_its_only_engine_to_thaw() -> None:
    engine = FakeEngine("only")
    async with fleet_of(engine, **SOON) as fleet:
        step = await freeze_in_a_step(fleet, engine)
        await until(lambda: fleet.counts().current == 0)
        assert not step.done()
        generation = fleet.generation()
        assert generation is not None
        assert generation.hung == {"only": "its engine core does not answer"}
        engine.thaw()
        assert len(await step) == 8
        assert fleet.num_stale_answers == 0


@pytest.mark.parametrize("is_core_answering", [True, False])
async def test_an_engine_that_is_slow_keeps_its_work(
    is_core_answering: bool, caplog: pytest.LogCaptureFixture
) -> None:
    slow = FakeEngine("slow")
    async with fleet_of(slow, **LATE) as fleet:
        await fleet.generate(requests(1))
        released = asyncio.Event()
        slow.vllm.during[SAMPLE_PATH] = released.wait
        if not is_core_answering:
            slow.vllm.during[IS_PAUSED_PATH] = released.wait
        step = asyncio.ensure_future(fleet.generate(requests(4)))
        for _ in range(40):
            # twice the limit in all
            slow.vllm.num_generated += 1
            await asyncio.wait([step], timeout=0.1)
        assert not step.done()
        released.set()
        assert len(await step) == 4
        assert (fleet.num_resent, fleet.counts().current) == (0, 1)
        assert not any(record.levelno >= logging.WARNING for record in caplog.records)


async def test_the_first_completions_of_an_engine_may_take_long() -> None:
    engine = FakeEngine("compiles")
    async with fleet_of(engine, **LATE) as fleet:
        engine.freeze_core()
        step = asyncio.ensure_future(fleet.generate(requests(4)))
        await asyncio.wait([step], timeout=4.0)
        assert (fleet.counts().current, fleet.num_resent) == (1, 0)
        engine.thaw()
        assert len(await step) == 4
        assert fleet.num_resent == 0
