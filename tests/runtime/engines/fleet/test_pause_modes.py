"""What becomes of completions that engines are sampling when they get new weights, without models."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from fake_engine_server import FAKE_BACKEND, FakeEngine, staging_engine
from fake_vllm import LARGEST_SEED
from fleet_builder import fleet_of, seeds, sync, until, versions

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import PauseMode, SamplingSpec
from grpo_runtime.data.seeds import segment_seed
from grpo_runtime.engines.fleet.engine_calls import Bundle
from grpo_runtime.engines.fleet.settings import Pause
from grpo_runtime.engines.routes import METRICS_PATH, PAUSE_PATH, SAMPLE_PATH
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout, VersionSpan

pytestmark = pytest.mark.usefixtures("pod_environment")
ABORT, WAIT = Pause(PauseMode.ABORT), Pause(PauseMode.WAIT)
LONG = SamplingSpec(temperature=1.0, max_tokens=8)


def group(size: int = 2, **changes: object) -> list[GenerateRequest]:
    """Completions for one prompt, with seeds from 100."""
    return [GenerateRequest((4, 5), seed=100 + number, **changes) for number in range(size)]  # type: ignore[arg-type]


async def sampled_over_a_sync(
    engine: FakeEngine, pause: Pause, requests: list[GenerateRequest], **changes: Any
) -> tuple[list[Rollout], int, int]:
    """What an engine samples that gets new weights meanwhile; how often samples went on, and tokens that were
    computed again for that."""
    settings: dict[str, Any] = {"is_asynchronous": True, "sampling": LONG, "evaluation": LONG}
    async with fleet_of(engine, pause=pause, **settings, **changes) as fleet:
        may_go_on = asyncio.Event()
        engine.vllm.during[SAMPLE_PATH] = may_go_on.wait
        step = asyncio.ensure_future(fleet.generate(requests))
        await until(lambda: engine.vllm.num_sampling == len(requests))
        syncing = asyncio.ensure_future(sync(fleet, step=1))
        if pause.mode is PauseMode.WAIT:
            engine.vllm.reached.clear()
            # it has all weights, and is not paused before it has answered
            await until(lambda: not fleet.workers())
            assert f"POST {PAUSE_PATH}" not in engine.vllm.reached
            later = asyncio.ensure_future(fleet.generate(group(1)))
            await until(lambda: fleet.generation() is not None and fleet.generation().num_waiting == 1)  # type: ignore[union-attr]
            may_go_on.set()
            assert versions(await later) == {"1.1"}
        await syncing
        may_go_on.set()
        return await step, fleet.num_handed_over, fleet.num_recomputed_tokens


async def test_with_wait_an_engine_finishes_what_it_has_before_it_is_paused_and_is_given_no_more() -> None:
    rollouts, num_handed_over, num_recomputed = await sampled_over_a_sync(staging_engine("a"), WAIT, group())
    assert versions(rollouts) == {"1.0"}
    assert (num_handed_over, num_recomputed) == (0, 0)


async def test_with_wait_an_engine_that_cannot_receive_meanwhile_is_waited_for_as_well() -> None:
    pausing = replace(FAKE_BACKEND, receives_while_serving=False)
    rollouts, _, _ = await sampled_over_a_sync(FakeEngine("a"), WAIT, group(), backend=pausing)
    assert versions(rollouts) == {"1.0"}


async def test_with_wait_a_call_that_was_made_just_before_is_waited_for() -> None:
    """Its task has not run yet when the engine is looked at."""
    engine = staging_engine("a")
    async with fleet_of(engine, pause=WAIT, is_asynchronous=True, sampling=LONG) as fleet:
        may_go_on = asyncio.Event()
        engine.vllm.during[SAMPLE_PATH] = may_go_on.wait
        [(instance, worker)] = fleet.workers().items()
        waiting = asyncio.ensure_future(fleet._roster.wait_until_answered(instance))
        call = asyncio.ensure_future(worker.sample(Bundle((4, 5), seed=100, num_samples=1)))
        await until(lambda: engine.vllm.num_sampling == 1)
        assert not waiting.done()
        may_go_on.set()
        await waiting
        assert seeds(await call) == [100]


async def count_a_token(engine: FakeEngine) -> None:
    engine.vllm.num_generated += 1


async def test_with_wait_the_others_go_on_without_one_that_hangs_before_it_has_answered() -> None:
    good, bad = staging_engine("good"), staging_engine("bad")
    together = replace(FAKE_BACKEND, is_collective=True)
    soon = {"hung_after_seconds": 0.5, "probe_timeout_seconds": 0.3}
    async with fleet_of(
        good, bad, backend=together, pause=WAIT, is_asynchronous=True, sampling=LONG, **soon
    ) as fleet:
        prompts = [GenerateRequest((number,), seed=100 + number) for number in range(8)]
        await fleet.generate(prompts)
        for each in (good, bad):
            # however long the test takes until then, neither hangs
            each.vllm.during[METRICS_PATH] = partial(count_a_token, each)
        may_go_on = asyncio.Event()
        good.vllm.during[SAMPLE_PATH] = may_go_on.wait
        bad.vllm.during[SAMPLE_PATH] = asyncio.Event().wait
        step = asyncio.ensure_future(fleet.generate(prompts))
        await until(lambda: good.vllm.num_sampling > 0 and bad.vllm.num_sampling > 0)
        syncing = asyncio.ensure_future(sync(fleet, step=1))
        await until(lambda: not fleet.workers())
        bad.vllm.reached.clear()
        bad.freeze_core()
        del bad.vllm.during[METRICS_PATH]
        may_go_on.set()
        report = await syncing
        assert report.synced == ("good",)
        assert report.failed == {"bad": "drain: its engine core does not answer"}
        assert f"POST {PAUSE_PATH}" not in bad.vllm.reached
        num_failures = {member.name: member.num_failures for member in fleet._roster.members()}
        assert num_failures == {"good": 0, "bad": 1}
        assert seeds(await step) == [request.seed for request in prompts]


async def test_with_abort_completions_go_on_from_their_tokens_with_the_new_weights() -> None:
    engine = staging_engine("a")
    rollouts, num_handed_over, num_recomputed = await sampled_over_a_sync(engine, ABORT, group())
    later = segment_seed(100, start=1) % LARGEST_SEED
    assert rollouts[0].completion_ids == (100, later, later + 1, later + 2)
    assert [(str(span.version), span.start, span.end) for span in rollouts[0].versions] == [
        ("1.0", 0, 1),
        ("1.1", 1, 4),
    ]
    assert rollouts[0].prompt_ids == (4, 5)
    assert seeds(rollouts) == [100, 101]
    assert not any(rollout.is_aborted for rollout in rollouts)
    first, *rest = engine.vllm.asked
    assert (first.num_so_far, first.parameters["max_tokens"], first.parameters["n"]) == (0, 8, 2)
    assert [tuple(call.token_ids) for call in rest] == [(4, 5, 100), (4, 5, 101)]
    assert {(call.num_so_far, call.parameters["max_tokens"], call.parameters["n"]) for call in rest} == {
        (1, 7, 1)
    }
    # of each, its prompt and its first token
    assert (num_handed_over, num_recomputed) == (2, 2 * 3)


async def test_what_was_handed_over_without_a_token_is_sampled_by_the_same_seed() -> None:
    engine = staging_engine("a")
    engine.vllm.num_handed_over = 0
    rollouts, num_handed_over, _ = await sampled_over_a_sync(engine, ABORT, group())
    assert (versions(rollouts), seeds(rollouts), num_handed_over) == ({"1.1"}, [100, 101], 0)


async def test_what_has_begun_and_is_handed_over_unsampled_was_not_computed_again() -> None:
    engine = staging_engine("a")
    so_far = Rollout((4, 5), (100,), (-1.0,), (VersionSpan(PolicyVersion(1, 0), 0, 1),), False, "a")
    engine.vllm.num_handed_over = 0
    [rollout], _, num_recomputed = await sampled_over_a_sync(engine, ABORT, group(1, so_far=so_far))
    assert versions([rollout]) == {"1.0", "1.1"}
    # once, for the call that was answered with tokens
    assert num_recomputed == 3


async def test_an_evaluation_and_what_a_grammar_shapes_are_sampled_anew() -> None:
    grammar = json.dumps({"structured_outputs": {"json_object": True}})
    for changes in ({"is_evaluation": True}, {"own_parameters": grammar}):
        rollouts, num_handed_over, _ = await sampled_over_a_sync(
            staging_engine("a"), ABORT, group(1, **changes)
        )
        assert (versions(rollouts), seeds(rollouts), num_handed_over) == ({"1.1"}, [100], 0)


async def test_with_keep_an_engine_that_ends_completions_by_abort_counts_as_failed() -> None:
    engine, other = staging_engine("a"), staging_engine("b")
    async with fleet_of(engine, other, is_asynchronous=True, sampling=LONG) as fleet:
        for each in (engine, other):
            each.vllm.during[SAMPLE_PATH] = asyncio.Event().wait
        step = asyncio.ensure_future(fleet.generate(group(1)))
        await until(lambda: engine.vllm.num_sampling + other.vllm.num_sampling == 1)
        asked, next_one = (engine, other) if engine.vllm.num_sampling else (other, engine)
        next_one.vllm.during.clear()
        await asked.vllm.hand_over()
        assert [rollout.engine for rollout in await step] == [next_one.name]
        assert (seeds(await step), fleet.num_resent, fleet.num_handed_over) == ([100], 1, 0)


@pytest.mark.parametrize("keeps_cache", [False, True])
async def test_the_cache_is_kept_where_the_job_says_so(*, keeps_cache: bool) -> None:
    engine = staging_engine("a")
    asked: list[bool] = []
    real = engine.vllm._verb

    def verb(path: str, body: object, *, query: dict[str, list[str]]) -> object:
        if path == PAUSE_PATH:
            asked.append(query["clear_cache"] == ["true"])
        return real(path, body, query=query)  # type: ignore[arg-type]

    engine.vllm._verb = verb  # type: ignore[assignment, method-assign]
    pause = Pause(PauseMode.KEEP, keeps_cache=keeps_cache)
    rollouts, _, num_recomputed = await sampled_over_a_sync(engine, pause, group())
    assert versions(rollouts) == {"1.0", "1.1"}
    assert asked == [not keeps_cache] * 2
    assert num_recomputed == (0 if keeps_cache else 2 * 3)
