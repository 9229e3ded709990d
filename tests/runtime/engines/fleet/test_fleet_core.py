"""A fleet some of whose engines misbehave, without models."""

import asyncio
import math
import socket
from collections.abc import Iterable
from dataclasses import replace

import pytest
from fake_engine_server import FakeEngine, staging_engine
from fake_vllm import RefusedError
from fleet_builder import (
    PROBE,
    fleet_of,
    hang,
    raising,
    requests,
    seeds,
    sync,
    unsynced_fleet_of,
    until,
    versions,
)

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.dispatch import MAX_ENGINES_PER_REQUEST
from grpo_runtime.engines.fleet.engine_client import Address
from grpo_runtime.engines.routes import PAUSE_PATH, SAMPLE_PATH, UPDATE_PATH
from grpo_runtime.rollouts.interface import EngineError, FailedSyncs, GenerateRequest, RolloutLostError

pytestmark = pytest.mark.usefixtures("pod_environment")


async def test_an_engine_that_failed_before_keeps_nobody_waiting_while_it_is_tried_again() -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad) as fleet:
        bad.vllm.during[PAUSE_PATH] = raising(RefusedError("the engine is broken"))
        report = await sync(fleet, step=1)
        assert (report.synced, set(report.failed)) == (("good",), {"bad"})

        # no deadline is in reach: a sync that waits for the engine's answer never returns
        is_tried = asyncio.Event()

        async def hang_and_tell() -> None:
            is_tried.set()
            await hang()

        bad.vllm.during[PAUSE_PATH] = hang_and_tell
        await is_tried.wait()
        assert (await sync(fleet, step=2)).synced == ("good",)


async def test_requests_of_an_engine_that_fell_out_of_the_fleet_go_to_another_one() -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad) as fleet:
        calls = iter(range(4))

        async def hang_and_fail_the_last() -> None:
            if next(calls) < 3:
                await hang()
            # the sync that follows leaves the engine paused, with the others in it
            bad.vllm.during[PAUSE_PATH] = hang
            raise RefusedError("a bad answer")

        bad.vllm.during[SAMPLE_PATH] = hang_and_fail_the_last
        rollouts = await fleet.generate(requests(8))
        assert seeds(rollouts) == list(range(100, 108))
        assert {rollout.engine for rollout in rollouts} == {"good"}
        assert fleet.num_resent == 4


@pytest.mark.parametrize("is_asynchronous", [False, True])
async def test_the_turns_of_a_session_stay_on_an_engine(is_asynchronous: bool) -> None:
    engines = [staging_engine("a"), staging_engine("b")]
    async with fleet_of(*engines, is_asynchronous=is_asynchronous) as fleet:

        async def engines_of(sessions: Iterable[int], *, turn: int) -> dict[int, str]:
            """Session -> the engine of its turn, when all of them ask at once in this order."""
            asked = [GenerateRequest((4, turn), seed=10 * turn + one, session=one) for one in sessions]
            answers = await asyncio.gather(*(fleet.generate([request]) for request in asked))
            return {10 * -turn + rollout.completion_ids[0]: rollout.engine for [rollout] in answers}

        first = await engines_of(range(4), turn=1)
        assert set(first.values()) == {"a", "b"}
        assert await engines_of(reversed(range(4)), turn=2) == first


async def test_an_engine_that_answers_what_none_can_sample_loses_its_turn() -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad")
    async with fleet_of(good, bad) as fleet:
        bad.vllm.logprob = math.nan
        # so that it is given no work again
        bad.vllm.during[PAUSE_PATH] = hang
        rollouts = await fleet.generate(requests(8))
        assert seeds(rollouts) == list(range(100, 108))
        assert {rollout.engine for rollout in rollouts} == {"good"}
        assert fleet.num_resent == 4


async def test_a_request_that_no_engine_answers_well_says_what_they_answered() -> None:
    engine = FakeEngine("a")
    async with fleet_of(engine) as fleet:
        await sync(fleet, step=1, probe=replace(PROBE, vocab_size=100))
        said = f"{MAX_ENGINES_PER_REQUEST} times: engine a sent token 102 of a vocabulary of 100$"
        with pytest.raises(EngineError, match=said):
            await fleet.generate(requests(1))
        await sync(fleet, step=2, probe=replace(PROBE, vocab_size=103))
        assert seeds(await fleet.generate(requests(1))) == [100]


async def test_an_address_that_accepts_and_never_answers_keeps_nobody_waiting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = Address("127.0.0.1", mute.getsockname()[1])
        async with fleet_of(FakeEngine("a"), FakeEngine("b"), others=[address]) as fleet:
            assert fleet.counts().current == 2


async def test_an_engine_that_does_not_compute_what_is_trained_leaves_the_fleet_and_is_not_ready() -> None:
    good, wrong = FakeEngine("good"), FakeEngine("wrong")
    async with fleet_of(good, wrong) as fleet:
        wrong.vllm.probe_logprob = -1.01
        report = await sync(fleet, step=1)
        assert report.synced == ("good",)
        assert report.failed == {
            "wrong": "verify: its logprobs differ from the trainer's by 0.01 nats, more than 0.0001"
        }
        assert fleet.counts().current == 1
        assert (await good.is_ready(), await wrong.is_ready()) == (True, False)
        rollouts = await fleet.generate(requests(8))
        assert {rollout.engine for rollout in rollouts} == {"good"}
        assert wrong.vllm.asked == []


async def test_why_an_engine_gets_no_weights_is_known_until_it_gets_them() -> None:
    good, wrong = FakeEngine("good"), FakeEngine("wrong")
    async with fleet_of(good, wrong) as fleet:
        assert fleet.failed_syncs() == {}
        wrong.vllm.probe_logprob = -1.01
        await sync(fleet, step=1)
        why = "verify: its logprobs differ from the trainer's by 0.01 nats, more than 0.0001"
        assert fleet.failed_syncs() == {"wrong": FailedSyncs(num=1, version=PolicyVersion(1, 1), why=why)}

        # newer weights say nothing about it: it is tried ever less often
        report = await sync(fleet, step=2)
        assert (report.failed, fleet.failed_syncs()["wrong"].num) == ({}, 1)
        await until(lambda: fleet.failed_syncs()["wrong"].num == 2)
        assert fleet.failed_syncs()["wrong"].version == PolicyVersion(1, 2)

        # a process that is started again in its place fails as well
        wrong.restart()
        wrong.vllm.probe_logprob = -1.01
        await until(lambda: fleet.failed_syncs()["wrong"].num == 3)
        wrong.restart()
        await until(lambda: fleet.counts().current == 2)
        assert fleet.failed_syncs() == {}


async def test_what_failed_in_a_pod_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    good, wrong = FakeEngine("good"), FakeEngine("wrong")
    wrong.vllm.probe_logprob = -1.01
    loop, addresses = asyncio.get_running_loop(), {"wrong.test": "127.0.0.1", "127.0.0.1": "127.0.0.1"}

    async def getaddrinfo(host: str, port: int, *, type: int) -> list[object]:
        if host not in addresses:
            raise socket.gaierror
        return [(socket.AF_INET, type, 0, "", (addresses[host], port))]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    async with wrong.serving():
        others = [Address("wrong.test", wrong.address.port)]
        async with fleet_of(good, others=others) as fleet:
            await until(lambda: set(fleet.failed_syncs()) == {"wrong"})
            wrong.hang_up()
            await until(lambda: fleet.counts().current == 1)
            assert set(fleet.failed_syncs()) == {"wrong"}
            del addresses["wrong.test"]
            await until(lambda: fleet.failed_syncs() == {})


async def test_new_weights_reach_every_engine_and_are_what_samples() -> None:
    first, second = FakeEngine("a"), FakeEngine("b")
    async with fleet_of(first, second) as fleet:
        old = first.vllm.weights
        assert (await sync(fleet, step=1)).synced == ("a", "b")
        assert first.vllm.weights == second.vllm.weights != old
        assert first.vllm.weight_version == second.vllm.weight_version == "1.1"
        assert versions(await fleet.generate(requests(8))) == {"1.1"}


async def test_an_engine_whose_weights_are_superseded_in_transfer_is_given_no_work() -> None:
    good, late = FakeEngine("good"), FakeEngine("late")
    late.hang_up()
    async with fleet_of(good, late, desired=1, max_in_flight=1) as fleet:
        late.restart()
        is_delivered, may_answer = asyncio.Event(), asyncio.Event()
        late.vllm.during[UPDATE_PATH] = is_delivered.wait
        await until(lambda: f"POST {UPDATE_PATH}" in late.vllm.reached)
        await sync(fleet, step=1)
        # there is more work than the other engine may be given
        good.vllm.during[SAMPLE_PATH] = may_answer.wait
        work = asyncio.ensure_future(fleet.generate(requests(8)))
        await until(lambda: good.vllm.num_sampling == 1)

        is_delivered.set()
        # it is looked at again once its sync is over
        late.vllm.reached.clear()
        await until(lambda: "GET /is_paused" in late.vllm.reached)
        may_answer.set()

        assert versions(await work) == {"1.1"}
        assert late.vllm.weight_version == "1.0"
        assert late.vllm.asked == []
        assert fleet.num_stale_answers == 0


async def test_the_first_sync_waits_for_all_engines() -> None:
    engine, late = FakeEngine("a"), FakeEngine("late")
    late.hang_up()
    async with unsynced_fleet_of(engine, late) as fleet:
        first = asyncio.ensure_future(sync(fleet, step=0))
        await until(lambda: fleet.counts().current == 1)
        assert not first.done()
        late.restart()
        assert (await first).synced == ("a", "late")


async def test_the_first_sync_does_not_wait_for_ever() -> None:
    engine, late = FakeEngine("a"), FakeEngine("late")
    late.hang_up()
    async with unsynced_fleet_of(engine, late, start_wait_seconds=0.3) as fleet:
        assert (await sync(fleet, step=0)).synced == ("a",)


async def test_a_sync_without_any_engine_has_an_end_that_names_the_failures() -> None:
    engine = FakeEngine("a")
    engine.vllm.probe_logprob = -2.0
    async with unsynced_fleet_of(engine, empty_wait_seconds=0.3) as fleet:
        with pytest.raises(RolloutLostError):
            await sync(fleet, step=0)
        await until(lambda: "a" in fleet.failed_syncs())
        with pytest.raises(RolloutLostError, match=r"weights for 0\.3 s \(a: verify: its logprobs differ"):
            await sync(fleet, step=0)
