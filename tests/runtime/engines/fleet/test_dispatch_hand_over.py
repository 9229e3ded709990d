"""Completions that engines hand over, and how they go on, without engines."""

import asyncio

import pytest
from fake_workers import (
    HUNG_SECONDS,
    VERSION,
    FakeFleet,
    FakeWorker,
    dispatch_over,
    fleet_of,
    singles,
)

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.dispatch import (
    MAX_ENGINES_PER_REQUEST,
    MOST_EMPTY_IN_A_ROW,
)
from grpo_runtime.engines.fleet.engine_calls import Bundle
from grpo_runtime.rollouts.interface import (
    EngineError,
    EngineGoneError,
    RequestRefusedError,
    Rollout,
    VersionSpan,
)


async def test_a_completion_that_is_handed_over_goes_on_from_its_tokens_on_another_engine() -> None:
    newer = PolicyVersion(1, 1)
    first = FakeWorker("a", num_tokens=4, hands_over={10}, hands_over_tokens=2)
    second = FakeWorker("b", num_tokens=4, version=newer)
    fleet = fleet_of(first)
    fleet.aborts = True
    first.behave = lambda worker, bundle: fleet.current.update({"b": second})
    found: list[tuple[int, Rollout]] = []
    dispatch = dispatch_over(fleet)
    first_bundle = Bundle(prompt_ids=(1,), seed=9, num_samples=2)

    def on_finished(number: int, rollout: Rollout) -> None:
        found.append((number, rollout))
        fleet.current.pop("a", None)

    rollouts = await asyncio.wait_for(dispatch.run([first_bundle], on_finished=on_finished), HUNG_SECONDS)
    assert [rollout.completion_ids for rollout in rollouts] == [(9, 10, 11, 12), (10, 11, 12, 13)]
    assert rollouts[1].versions == (VersionSpan(VERSION, 0, 2), VersionSpan(newer, 2, 4))
    assert [(number, rollout.is_aborted) for number, rollout in found] == [(0, False), (1, True), (1, False)]
    assert found[1][1].completion_ids == (10, 11)
    assert (dispatch.num_handed_over, dispatch.num_resent) == (1, 0)
    assert fleet.unhealthy == []


async def test_no_engine_with_older_weights_goes_on_with_a_completion_and_others_need_not_wait() -> None:
    newest = PolicyVersion(1, 1)
    first = FakeWorker("a", num_tokens=3, version=newest, hands_over={0})
    older = FakeWorker("b", num_tokens=3)
    fleet = fleet_of(first)
    fleet.aborts = True
    taken: list[int] = []

    def on_finished(number: int, rollout: Rollout) -> None:
        if rollout.is_aborted:
            fleet.current = {"b": older}
            return
        taken.append(number)
        if taken == [1, 2]:
            first.hands_over.clear()
            fleet.current = {"a": first}

    dispatch = dispatch_over(fleet, max_in_flight=1)
    rollouts = await asyncio.wait_for(dispatch.run(singles(3), on_finished=on_finished), HUNG_SECONDS)
    assert taken == [1, 2, 0]
    assert rollouts[0].completion_ids == (0, 1, 2)
    assert older.sampled == [1, 2]


async def test_without_the_mode_what_is_handed_over_is_sampled_anew() -> None:
    first = FakeWorker("a", num_tokens=3, hands_over={0})
    first.behave = lambda worker, bundle: worker.hands_over.clear() if worker.sampled else None
    found: list[tuple[int, bool]] = []
    dispatch = dispatch_over(fleet_of(first))
    rollouts = await asyncio.wait_for(
        dispatch.run(singles(1), on_finished=lambda number, one: found.append((number, one.is_aborted))),
        HUNG_SECONDS,
    )
    assert rollouts[0].completion_ids == (0, 1, 2)
    assert (found, dispatch.num_resent, first.sampled) == ([(0, False)], 1, [0, 0])


async def test_a_request_that_is_handed_over_again_and_again_without_a_token_counts_as_failed() -> None:
    engine = FakeWorker("a", num_tokens=3, hands_over={0}, hands_over_tokens=0)
    fleet = fleet_of(engine)
    fleet.aborts = True
    with pytest.raises(EngineError, match="new weights 16 times before they sampled one token of it"):
        await asyncio.wait_for(dispatch_over(fleet).run(singles(1)), HUNG_SECONDS)
    assert (len(engine.sampled), fleet.unhealthy) == (MOST_EMPTY_IN_A_ROW, [])


async def test_what_waits_in_an_engine_that_hands_over_keeps_its_turn() -> None:
    """The engine samples a token of one request between two syncs, and hands all of them over."""
    engine = FakeWorker("a", num_tokens=MOST_EMPTY_IN_A_ROW + 2)
    fleet = fleet_of(engine)
    fleet.aborts = True
    asked: asyncio.Queue[tuple[Bundle, asyncio.Future[list[Rollout]]]] = asyncio.Queue()

    async def sample(asked_for: Bundle) -> list[Rollout]:
        answer: asyncio.Future[list[Rollout]] = asyncio.get_running_loop().create_future()
        await asked.put((asked_for, answer))
        return await answer

    engine.sample = sample  # type: ignore[method-assign]
    finished: list[int] = []

    def on_finished(number: int, rollout: Rollout) -> None:
        if not rollout.is_aborted:
            finished.append(number)

    sampling = asyncio.ensure_future(dispatch_over(fleet).run(singles(4), on_finished=on_finished))
    num_left = 4
    while num_left:
        async with asyncio.timeout(10):
            calls = [await asked.get() for _ in range(num_left)]
        for place, (given, answer) in enumerate(calls):
            is_last = place == 0 and len(given.ids_so_far) + 1 == engine.num_tokens
            engine.hands_over = set() if is_last else {given.seed}
            engine.hands_over_tokens = int(place == 0)
            answer.set_result([engine._rollout(given, given.seed)])
            num_left -= is_last
    await asyncio.wait_for(sampling, HUNG_SECONDS)
    assert (finished, fleet.unhealthy) == ([0, 1, 2, 3], [])


async def test_an_engine_that_is_full_and_may_alone_go_on_with_a_completion_holds_up_no_other() -> None:
    newest = PolicyVersion(1, 1)
    newer, older = FakeWorker("a", is_hanging=True, version=newest), FakeWorker("b")
    dispatch = dispatch_over(fleet_of(newer, older), max_in_flight=1)
    so_far = Rollout((7,), (1,), (-1.0,), (VersionSpan(newest, 0, 1),), False, "a", is_aborted=True)
    bundles = [Bundle(prompt_ids=(7,), seed=seed, num_samples=1, so_far=so_far) for seed in (7, 8)]
    finished: asyncio.Queue[int] = asyncio.Queue()
    sampling = asyncio.ensure_future(
        dispatch.run([*bundles, *singles(2)], on_finished=lambda number, _: finished.put_nowait(number))
    )
    async with asyncio.timeout(10):
        assert [await finished.get(), await finished.get()] == [2, 3]
    assert newer.in_flight == 1
    sampling.cancel()
    await asyncio.gather(sampling, return_exceptions=True)


async def test_a_call_that_can_never_go_on_is_refused_and_no_engine_is_blamed() -> None:
    """Such as one with a grammar, which takes longer than the time between two weight syncs."""
    engine = FakeWorker("a", num_tokens=3, hands_over={0})
    fleet = fleet_of(engine)
    judged = Bundle(prompt_ids=(1,), seed=0, num_samples=1, own_parameters="{}")
    with pytest.raises(RequestRefusedError, match="by its parameters it begins anew each time") as refused:
        await asyncio.wait_for(dispatch_over(fleet).run([judged]), HUNG_SECONDS)
    assert refused.value.said.startswith("engines got new weights 16 times")
    assert (len(engine.sampled), fleet.unhealthy) == (MOST_EMPTY_IN_A_ROW, [])


async def test_a_request_may_fail_as_often_again_once_it_has_gone_on() -> None:
    """Of a long completion whose engines come and go."""
    fails = [True] * (MAX_ENGINES_PER_REQUEST - 1)
    calls = iter([*fails, False, *fails, False])
    engine = FakeWorker("a", num_tokens=3, hands_over={0})
    fleet = fleet_of(engine)
    fleet.aborts = True

    def behave(worker: FakeWorker, bundle: Bundle) -> None:
        worker.hands_over = set() if bundle.so_far else {0}
        if next(calls):
            raise EngineGoneError("reset by peer")

    def mark_unhealthy(key: str, error: Exception) -> None:
        fleet.unhealthy.append(key)

    engine.behave = behave
    fleet.mark_unhealthy = mark_unhealthy  # type: ignore[method-assign]
    [rollout] = await asyncio.wait_for(dispatch_over(fleet).run(singles(1)), HUNG_SECONDS)
    assert (rollout.completion_ids, len(fleet.unhealthy)) == ((0, 1, 2), 2 * len(fails))


async def test_a_hung_engine_hands_over_before_its_requests_are_taken_back() -> None:
    """One of its two requests; the other one is begun anew."""
    hanging, other = FakeWorker("a", num_tokens=3), FakeWorker("b", num_tokens=3)
    answers = asyncio.Event()
    fleet = fleet_of(hanging)
    fleet.aborts = True

    async def sample(bundle: Bundle) -> list[Rollout]:
        await (answers.wait() if bundle.seed == 0 else asyncio.Event().wait())
        hanging.hands_over = {0}
        return [hanging._rollout(bundle, bundle.seed)]

    hanging.sample = sample  # type: ignore[method-assign]
    found: list[tuple[int, tuple[int, ...], bool]] = []
    fleet.on_hand_over = lambda key: answers.set()

    def on_tick(fleet: FakeFleet) -> None:
        fleet.current, fleet.lost = {"b": other}, {"a"}

    fleet.on_tick = on_tick
    rollouts = await asyncio.wait_for(
        dispatch_over(fleet).run(
            singles(2),
            on_finished=lambda number, one: found.append((number, one.completion_ids, one.is_aborted)),
        ),
        HUNG_SECONDS,
    )
    assert fleet.told_to_hand_over == ["a"]
    assert found[0] == (0, (0,), True)
    assert [rollout.completion_ids for rollout in rollouts] == [(0, 1, 2), (1, 2, 3)]
