"""Rank 0 and the ranks that hold engines, as threads over fake engines."""

import asyncio
import threading
from dataclasses import replace

import pytest
from fake_local_engine import FakeChannel, FakeLocalEngine, some_weights, token_of
from polling import until

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.colocated.engine_slice import EngineSlice
from grpo_runtime.engines.colocated.engines import ColocatedEngines, EngineExecutor
from grpo_runtime.engines.colocated.rank_engine import PHASES, RankEngine
from grpo_runtime.rollouts.interface import (
    EngineError,
    EngineTimeoutError,
    GenerateRequest,
    Generation,
    Probe,
    Rollout,
    VersionSpan,
)
from grpo_runtime.weight_sync.registry import IN_PROCESS

PROBE = Probe(token_ids=(1, 2, 3), logprobs=(-1.0, -2.0), tolerance=1e-4)
VERSION = PolicyVersion(attempt=1, step=3)


def requests(count: int) -> list[GenerateRequest]:
    return [
        GenerateRequest(prompt_ids=tuple(range(index % 4 + 1)), seed=index + 2**60) for index in range(count)
    ]


def start(
    fakes: list[FakeLocalEngine], *, ranks_per_engine: int = 1, sync_timeout_seconds: float = 60.0
) -> tuple[ColocatedEngines, list[EngineExecutor]]:
    """Rank 0's engines and the other ranks; `fakes` are one for each rank."""
    slices = [
        EngineSlice(
            RankEngine(fake, backend=IN_PROCESS, sleep_level=1, timeout_seconds=60.0),
            channel,
            ranks_per_engine=ranks_per_engine,
        )
        for fake, channel in zip(fakes, FakeChannel.of(len(fakes)), strict=True)
    ]
    executors = [EngineExecutor(engine_slice, weights=some_weights()) for engine_slice in slices[1:]]
    engines = ColocatedEngines(
        slices[0],
        sync_timeout_seconds=sync_timeout_seconds,
        num_finished=lambda: [engine_slice.num_finished() for engine_slice in slices],
    )
    return engines, executors


def test_the_threads_that_use_an_engine_are_prepared_for_its_gpu() -> None:
    prepared: list[str] = []
    ready = threading.Event()

    def enter() -> None:
        prepared.append(threading.current_thread().name)
        ready.set()

    first, second = (
        EngineSlice(
            RankEngine(fake, backend=IN_PROCESS, sleep_level=1, timeout_seconds=60.0),
            channel,
            ranks_per_engine=1,
            enter_thread=enter,
        )
        for fake, channel in zip(good(2), FakeChannel.of(2), strict=True)
    )
    EngineExecutor(second, weights=some_weights())
    assert ready.wait(60)
    engines = ColocatedEngines(first, sync_timeout_seconds=60.0, num_finished=lambda: [0, 0])
    asyncio.run(engines.sync(some_weights(), version=VERSION, probe=PROBE))
    assert [name.partition("_")[0] for name in prepared] == ["engine", "engine"]


def good(count: int) -> list[FakeLocalEngine]:
    return [FakeLocalEngine(logprobs=PROBE.logprobs) for _ in range(count)]


@pytest.mark.parametrize(
    ("num_ranks", "ranks_per_engine", "num_requests"), [(1, 1, 5), (3, 1, 7), (4, 2, 7), (2, 2, 3), (4, 1, 2)]
)
async def test_completions_come_in_the_order_of_requests_from_every_engine_once(
    num_ranks: int, ranks_per_engine: int, num_requests: int
) -> None:
    fakes, asked = good(num_ranks), requests(num_requests)
    engines, _ = start(fakes, ranks_per_engine=ranks_per_engine)
    report = await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    rollouts = await engines.generate(asked)

    num_engines = num_ranks // ranks_per_engine
    assert len(report.synced) == num_engines
    assert engines.counts() == EngineCounts(desired=num_engines, known=num_engines, current=num_engines)
    assert [(rollout.prompt_ids, rollout.completion_ids[0]) for rollout in rollouts] == [
        (request.prompt_ids, token_of(request.seed)) for request in asked
    ]
    for rollout in rollouts:
        assert len(rollout.completion_ids) == len(rollout.rollout_logprobs)
        assert rollout.versions == (VersionSpan(VERSION, 0, len(rollout.completion_ids)),)
        assert rollout.is_terminated == (rollout.completion_ids[0] % 2 == 0)
    for index in range(num_engines):
        members = fakes[index * ranks_per_engine : (index + 1) * ranks_per_engine]
        # ranks of one engine must be given the same requests, or each waits for the others in a layer;
        # and all of them are done when rank 0 is
        assert all(fake.sampled == members[0].sampled for fake in members)
    assert [request for fake in fakes[::ranks_per_engine] for request in fake.sampled] == asked


async def test_every_engine_learns_that_completions_are_of_an_evaluation() -> None:
    fakes = good(2)
    engines, _ = start(fakes)
    await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    asked = [replace(request, is_evaluation=True) for request in requests(5)]
    await engines.generate(asked)
    assert [request for fake in fakes for request in fake.sampled] == asked


async def test_every_engine_stays_awake_between_the_turns_of_completions_and_learns_their_lengths() -> None:
    fakes = good(2)
    engines, _ = start(fakes)
    await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    asked = [replace(request, max_tokens=index or None) for index, request in enumerate(requests(5))]
    for _ in range(2):
        await engines.generate(asked, stays_awake=True)
    assert [fake.calls.count("sleep 1") for fake in fakes] == [0, 0]
    await engines.rest()
    assert [fake.calls.count("sleep 1") for fake in fakes] == [1, 1]
    assert {request.seed: request for fake in fakes for request in fake.sampled} == {
        request.seed: request for request in asked
    }


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_session_stays_on_the_engine_that_has_its_prefix_until_the_next_sync(
    is_streamed: bool,
) -> None:
    fakes = good(2)
    engines, _ = start(fakes)

    async def asked_of_each(sessions: list[int], *, turn: int) -> list[list[int]]:
        """The sessions that each engine gets of these, whose answers are in the order of the sessions."""
        before = [len(fake.sampled) for fake in fakes]
        turns = [
            GenerateRequest((1, turn), seed=10 * turn + session, session=session) for session in sessions
        ]
        finished: dict[int, Rollout] = {}
        rollouts = await engines.generate(
            turns, on_finished=finished.__setitem__ if is_streamed else None, stays_awake=True
        )
        assert [rollout.completion_ids[0] for rollout in rollouts] == [token_of(one.seed) for one in turns]
        assert finished == (dict(enumerate(rollouts)) if is_streamed else {})
        return [
            [request.seed % 10 for request in fake.sampled[begin:]]
            for fake, begin in zip(fakes, before, strict=True)
        ]

    await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    assert await asked_of_each([0, 1, 2, 3], turn=1) == [[0, 1], [2, 3]]
    assert await asked_of_each([2, 1, 0], turn=2) == [[1, 0], [2]]
    assert await asked_of_each([3, 4, 5, 2], turn=3) == [[4, 5], [3, 2]]
    await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    assert await asked_of_each([3, 2, 1, 0], turn=1) == [[3, 2], [1, 0]]


async def test_a_sync_reports_its_phases_its_bytes_and_the_error_of_the_worst_engine() -> None:
    fakes = [FakeLocalEngine(logprobs=PROBE.logprobs), FakeLocalEngine(logprobs=(-1.00005, -2.0))]
    engines, _ = start(fakes)
    assert engines.counts() == EngineCounts(desired=2, known=2, current=0)
    report = await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    assert report.max_probe_error == pytest.approx(2.5e-5)
    assert tuple(report.phase_seconds) == PHASES
    assert (report.num_bytes, report.version, dict(report.failed)) == (16, VERSION, {})
    assert (report.num_bytes_sent, report.paused_seconds) == (0, None)


async def test_an_engine_that_computes_something_else_ends_the_attempt_by_name() -> None:
    engines, _ = start([FakeLocalEngine(logprobs=PROBE.logprobs), FakeLocalEngine(logprobs=(-1.2, -2.0))])
    with pytest.raises(EngineError, match=r"rank 1 does not compute what is trained.*1\.3.*0\.1 nats"):
        await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    assert engines.counts().current == 0


async def test_without_a_probe_nothing_is_verified() -> None:
    fakes = [FakeLocalEngine()]
    engines, _ = start(fakes)
    await engines.sync(some_weights(), version=VERSION, probe=None)
    assert "probe" not in fakes[0].calls


@pytest.mark.parametrize("version", ["1.2", "1.4", "2.3"])
async def test_an_engine_with_other_weights_than_the_newest_gives_no_samples(version: str) -> None:
    fakes = good(1)
    engines, _ = start(fakes)
    await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    fakes[0].version = version
    with pytest.raises(EngineError, match=f"sampled with weights {version}, not 1.3"):
        await engines.generate(requests(2))


async def test_an_engine_that_never_loads_the_weights_is_given_up_at_the_deadline() -> None:
    may_go_on = threading.Event()

    class HungEngine(FakeLocalEngine):
        def reset_prefix_cache(self) -> None:
            may_go_on.wait(60)

    engines, _ = start([HungEngine()], sync_timeout_seconds=0.1)
    try:
        # nobody but the deadline ends this
        with pytest.raises(EngineTimeoutError, match=r"did not load the weights within 0\.5 s"):
            await engines.sync(some_weights(), version=VERSION, probe=None)
    finally:
        may_go_on.set()
    assert engines.counts().current == 0


async def test_a_rank_whose_engine_fails_says_so_in_its_main_thread() -> None:
    fakes = [*good(1), FakeLocalEngine(logprobs=PROBE.logprobs, error=ValueError("the engine is broken"))]
    engines, [executor] = start(fakes, ranks_per_engine=2)
    await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    executor.check()
    # rank 0 waits for its answer; where ranks are processes the end of this one ends the wait
    waiting = asyncio.ensure_future(engines.generate(requests(1)))

    def has_failed() -> bool:
        try:
            executor.check()
        except ValueError as error:
            return "the engine is broken" in str(error)
        return False

    await until(has_failed)
    waiting.cancel()


async def test_while_it_samples_rank_0_can_tell_what_every_engine_has_finished() -> None:
    fakes = [FakeLocalEngine(logprobs=PROBE.logprobs, is_stepped=True) for _ in range(2)]
    engines, _ = start(fakes)
    await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    assert engines.generation() is None
    work = asyncio.ensure_future(engines.generate(requests(7)))

    def now() -> Generation:
        found = engines.generation()
        assert found is not None
        return found

    await until(lambda: [fake.num_unfinished() for fake in fakes] == [3, 4])
    assert (now().num_samples, now().num_done, now().given) == (7, 0, {"engine-0": 3, "engine-1": 4})
    fakes[0].finish(3)
    await until(lambda: now().given == {"engine-1": 4})  # that of rank 0 is done, the other one hangs
    quiet_seconds = now().quiet_seconds
    await until(lambda: now().quiet_seconds > quiet_seconds + 0.1)
    fakes[1].finish(1)
    await until(lambda: (now().num_done, now().given) == (4, {"engine-1": 3}))
    fakes[1].finish(3)
    assert len(await work) == 7
    assert engines.generation() is None


@pytest.mark.parametrize(("num_ranks", "ranks_per_engine"), [(1, 1), (3, 1), (4, 2)])
async def test_every_sample_is_passed_on_once_as_it_will_be_returned(
    num_ranks: int, ranks_per_engine: int
) -> None:
    engines, _ = start(good(num_ranks), ranks_per_engine=ranks_per_engine)
    await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    finished: list[tuple[int, Rollout]] = []
    rollouts = await engines.generate(
        requests(7), on_finished=lambda index, rollout: finished.append((index, rollout))
    )
    assert sorted(finished, key=lambda found: found[0]) == list(enumerate(rollouts))


async def test_a_sample_of_another_rank_is_passed_on_while_that_rank_still_samples() -> None:
    fakes = [FakeLocalEngine(logprobs=PROBE.logprobs, is_stepped=True) for _ in range(2)]
    engines, _ = start(fakes)
    await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    finished: list[int] = []
    work = asyncio.ensure_future(
        engines.generate(requests(4), on_finished=lambda index, _: finished.append(index))
    )
    fakes[1].finish(1)
    await until(lambda: finished == [2])
    assert not work.done()
    fakes[0].finish(2)
    fakes[1].finish(1)
    await work
    assert sorted(finished) == [0, 1, 2, 3]


async def test_samples_that_finish_after_a_stop_are_passed_on_too() -> None:
    [fake] = fakes = [FakeLocalEngine(logprobs=PROBE.logprobs, is_stepped=True)]
    engines, _ = start(fakes)
    await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    finished: list[int] = []
    work = asyncio.ensure_future(
        engines.generate(requests(3), on_finished=lambda index, _: finished.append(index))
    )
    fake.finish(1)
    await until(lambda: finished == [0])
    work.cancel()
    await asyncio.wait([work])
    fake.finish(2)
    await until(lambda: finished == [0, 1, 2])


async def test_engines_that_rest_sleep_once_and_serve_after_the_next_sync() -> None:
    fakes = good(2)
    engines, _ = start(fakes)
    for _ in range(3):
        await engines.rest()
    assert [fake.calls for fake in fakes] == [["sleep 1"], ["sleep 1"]]
    await engines.sync(some_weights(), version=VERSION, probe=PROBE)
    assert len(await engines.generate(requests(2))) == 2
    await engines.rest()
    assert [fake.calls.count("sleep 1") for fake in fakes] == [2, 2]
