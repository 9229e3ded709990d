"""A fleet whose engines get new weights while they sample, without models."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from fake_engine_server import FAKE_BACKEND, FakeEngine, staging_engine
from fleet_builder import fleet_of, seeds, sync, until, versions

from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.engines.fleet.core import FleetCore
from grpo_runtime.engines.routes import FINISH_PATH, LOGPROBS_PATH, PAUSE_PATH, SAMPLE_PATH, UPDATE_PATH
from grpo_runtime.rollouts.interface import GenerateRequest, Recomputed

pytestmark = pytest.mark.usefixtures("pod_environment")


@asynccontextmanager
async def asynchronous_fleet_of(*engines: FakeEngine, **changes: Any) -> AsyncIterator[FleetCore]:
    evaluation = SamplingSpec(temperature=1.0, max_tokens=4)
    async with fleet_of(*engines, is_asynchronous=True, evaluation=evaluation, **changes) as fleet:
        yield fleet


def groups(count: int, *, is_evaluation: bool = False) -> list[GenerateRequest]:
    """Two completions for each prompt."""
    return [
        GenerateRequest((4 + prompt,), seed=100 * prompt + number, is_evaluation=is_evaluation)
        for prompt in range(count)
        for number in range(2)
    ]


async def test_a_completion_that_new_weights_interrupted_is_used_and_says_which_sampled_what() -> None:
    engine = staging_engine("a")
    async with asynchronous_fleet_of(engine) as fleet:
        may_go_on = asyncio.Event()
        engine.vllm.during[SAMPLE_PATH] = may_go_on.wait
        step = asyncio.ensure_future(fleet.generate(groups(2)))
        await until(lambda: engine.vllm.num_sampling == 4)
        await sync(fleet, step=1)
        may_go_on.set()

        rollouts = await step
        assert seeds(rollouts) == [0, 1, 100, 101]
        spans = [(str(span.version), span.start, span.end) for span in rollouts[0].versions]
        assert spans == [("1.0", 0, 1), ("1.1", 1, 3)]
        assert (fleet.num_stale_answers, fleet.num_resent) == (0, 0)
        # of each, its prompt and its first token
        assert fleet.num_recomputed_tokens == 4 * 2


async def test_an_evaluation_that_new_weights_interrupted_is_sampled_again() -> None:
    engine = staging_engine("a")
    async with asynchronous_fleet_of(engine) as fleet:
        may_go_on = asyncio.Event()
        engine.vllm.during[SAMPLE_PATH] = may_go_on.wait
        step = asyncio.ensure_future(fleet.generate(groups(1, is_evaluation=True)))
        await until(lambda: engine.vllm.num_sampling == 2)
        await sync(fleet, step=1)
        may_go_on.set()
        assert versions(await step) == {"1.1"}
        assert fleet.num_stale_answers == 2


async def test_tokens_of_weights_before_those_that_the_engine_had_when_asked_are_thrown_away() -> None:
    engine = staging_engine("a")
    async with asynchronous_fleet_of(engine) as fleet:
        await sync(fleet, step=1)
        engine.vllm.next_versions.append(("1.0", "1.1", "1.1"))
        assert versions(await fleet.generate(groups(1))) == {"1.1"}
        assert fleet.num_stale_answers == 2


async def test_an_engine_that_fails_its_verification_loses_what_it_samples() -> None:
    good, wrong = staging_engine("good"), staging_engine("wrong")
    async with asynchronous_fleet_of(good, wrong) as fleet:
        # what it is given is never answered
        wrong.vllm.during[SAMPLE_PATH] = asyncio.Event().wait
        step = asyncio.ensure_future(fleet.generate(groups(4)))
        await until(lambda: wrong.vllm.num_sampling > 0)
        wrong.vllm.probe_logprob = -1.01
        assert set((await sync(fleet, step=1)).failed) == {"wrong"}
        rollouts = await step
        assert {rollout.engine for rollout in rollouts} == {"good"}
        assert fleet.num_resent == 4


async def test_what_an_engine_answers_before_its_verification_fails_is_not_used() -> None:
    good, wrong = staging_engine("good"), staging_engine("wrong")
    async with asynchronous_fleet_of(good, wrong) as fleet:
        may_go_on, may_verify, is_asked = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def verify_late() -> None:
            is_asked.set()
            await may_verify.wait()

        wrong.vllm.during |= {SAMPLE_PATH: may_go_on.wait, LOGPROBS_PATH: verify_late}
        step = asyncio.ensure_future(fleet.generate(groups(2)))
        await until(lambda: wrong.vllm.num_sampling > 0)
        wrong.vllm.probe_logprob = -1.01
        syncing = asyncio.ensure_future(sync(fleet, step=1))
        await is_asked.wait()
        # it has resumed with the new weights
        may_go_on.set()
        await until(lambda: wrong.vllm.num_sampling == 0)
        may_verify.set()
        await syncing
        rollouts = await step
        assert {rollout.engine for rollout in rollouts} == {"good"}


async def test_an_engine_is_given_work_while_it_receives_and_none_once_it_is_paused() -> None:
    engine = staging_engine("a")
    async with asynchronous_fleet_of(engine) as fleet:
        is_delivered, may_load, is_paused = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def load_late() -> None:
            is_paused.set()
            await may_load.wait()

        engine.vllm.during |= {UPDATE_PATH: is_delivered.wait, FINISH_PATH: load_late}
        engine.vllm.reached.clear()
        syncing = asyncio.ensure_future(sync(fleet, step=1))
        await until(lambda: f"POST {UPDATE_PATH}" in engine.vllm.reached)
        assert versions(await fleet.generate(groups(2))) == {"1.0"}
        assert not syncing.done()

        is_delivered.set()
        await is_paused.wait()
        step = asyncio.ensure_future(fleet.generate(groups(2)))
        await until(lambda: fleet.generation() is not None)
        may_load.set()
        # what it was given before it had resumed would have begun with the weights before
        assert versions(await step) == {"1.1"}
        await syncing


@pytest.mark.parametrize(
    ("is_asynchronous", "stages", "first"),
    [(True, True, UPDATE_PATH), (True, False, PAUSE_PATH), (False, True, PAUSE_PATH)],
)
async def test_only_an_engine_that_stages_is_paused_after_the_transfer_and_only_in_asynchronous_training(
    is_asynchronous: bool, stages: bool, first: str
) -> None:
    engine = FakeEngine("a")
    engine.vllm.stages = stages
    backend = replace(FAKE_BACKEND, receives_while_serving=stages)
    async with fleet_of(engine, backend=backend, is_asynchronous=is_asynchronous) as fleet:
        engine.vllm.reached.clear()
        await sync(fleet, step=1)
        order = [
            call for call in engine.vllm.reached if call in (f"POST {UPDATE_PATH}", f"POST {PAUSE_PATH}")
        ]
        assert (len(order), order[0]) == (2, f"POST {first}")


async def test_cached_prefixes_are_those_of_the_weights_at_the_start_of_a_call() -> None:
    engine = staging_engine("a")
    async with asynchronous_fleet_of(engine) as fleet:
        await fleet.generate(groups(1))
        await sync(fleet, step=1)
        await fleet.generate(groups(1))
        assert [call.cache_salt for call in engine.vllm.asked] == ["1.0", "1.1"]
    other = FakeEngine("b")
    async with fleet_of(other) as fleet:
        await fleet.generate(groups(1))
        assert {call.cache_salt for call in other.vllm.asked} == {None}


async def test_preemptions_count_from_when_an_engine_is_first_seen_to_its_last_call() -> None:
    engine = staging_engine("a")
    # for an earlier attempt
    engine.vllm.num_preemptions = 5
    async with asynchronous_fleet_of(engine) as fleet:

        async def preempt() -> None:
            engine.vllm.num_preemptions += 1

        engine.vllm.during[SAMPLE_PATH] = preempt
        for _ in range(3):
            # in less time than there is between two looks
            await fleet.generate(groups(1))
        await until(lambda: fleet.recomputed.num_preemptions == 3)
    assert fleet.recomputed == Recomputed(num_preemptions=3)


async def test_an_engine_without_work_is_idle_and_one_that_samples_is_not() -> None:
    idle, busy = staging_engine("idle"), staging_engine("busy")
    async with asynchronous_fleet_of(idle, busy) as fleet:
        assert set(fleet.take_idle_seconds()) == {"idle", "busy"}
        busy.vllm.during[SAMPLE_PATH] = asyncio.Event().wait
        idle.hang_up()
        await until(lambda: fleet.counts().current == 1)
        step = asyncio.ensure_future(fleet.generate(groups(1)))
        await until(lambda: busy.vllm.num_sampling == 2)
        fleet.take_idle_seconds()
        idle.answer_again()
        await until(lambda: fleet.counts().current == 2)
        assert set(fleet.take_idle_seconds()) == {"idle"}
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
