"""Work for a fleet whose engines fail in every way, without engines."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from fake_workers import (
    HUNG_SECONDS,
    Behaviour,
    FakeFleet,
    FakeWorker,
    dispatch_over,
    fleet_of,
    singles,
    until_in_flight,
)

from grpo_runtime.engines.fleet.dispatch import (
    MAX_ENGINES_PER_REQUEST,
    NUM_REMEMBERED,
    TURNS_AHEAD,
    Dispatch,
    DispatchLimits,
)
from grpo_runtime.engines.fleet.engine_calls import Bundle, bundle
from grpo_runtime.engines.fleet.engine_client import EngineRefusedError
from grpo_runtime.errors import UserError
from grpo_runtime.rollouts.interface import (
    EngineError,
    EngineGoneError,
    GenerateRequest,
    RequestRefusedError,
    Rollout,
    RolloutLostError,
)


async def run(fleet: FakeFleet, count: int = 20, **limits: Any) -> tuple[list[int], int]:
    """The seeds of the rollouts in the order given, and how many were sent again."""
    dispatch = dispatch_over(fleet, **limits)
    rollouts = await asyncio.wait_for(dispatch.run(singles(count)), HUNG_SECONDS)
    return [rollout.completion_ids[0] for rollout in rollouts], dispatch.num_resent


def fail_with(error: Exception) -> Behaviour:
    def behave(worker: FakeWorker, bundle: Bundle) -> None:
        raise error

    return behave


async def test_rollouts_come_in_the_order_of_their_requests_from_any_engine() -> None:
    first, second = FakeWorker("a"), FakeWorker("b")
    assert await run(fleet_of(first, second)) == (list(range(20)), 0)
    assert len(first.sampled) == len(second.sampled) == 10


async def test_samples_are_passed_on_as_their_call_is_answered_and_once_when_an_engine_is_lost() -> None:
    bad, good = FakeWorker("a", fail_with(EngineGoneError("reset by peer"))), FakeWorker("b")
    bundles = [Bundle((number,), seed=10 * number, num_samples=3) for number in range(4)]
    finished: list[tuple[int, Rollout]] = []
    dispatch = dispatch_over(fleet_of(bad, good), max_in_flight=6)
    running = dispatch.run(bundles, on_finished=lambda index, rollout: finished.append((index, rollout)))
    rollouts = await asyncio.wait_for(running, HUNG_SECONDS)
    assert sorted(finished, key=lambda found: found[0]) == list(enumerate(rollouts))


async def test_a_sample_was_sampled_since_the_last_engine_got_it() -> None:
    now = [100.0]

    def takes(seconds: float, error: Exception | None = None) -> Behaviour:
        def behave(worker: FakeWorker, bundle: Bundle) -> None:
            now[0] += seconds
            if error is not None:
                raise error

        return behave

    bad, good = FakeWorker("a", takes(5.0, EngineGoneError("reset"))), FakeWorker("b", takes(3.0))
    limits = DispatchLimits(max_in_flight=1, empty_wait_seconds=60.0, poll_seconds=0.01)
    dispatch = Dispatch(fleet_of(bad, good), limits=limits, clock=lambda: now[0])
    rollouts = await asyncio.wait_for(dispatch.run(singles(3)), HUNG_SECONDS)
    # the first two were asked of both at once, and each answer came when both had taken their time
    assert [rollout.sampling_seconds for rollout in rollouts] == [3.0, 8.0, 3.0]


async def test_no_engine_gets_more_at_a_time_than_the_limit() -> None:
    worker = FakeWorker("a")
    await run(fleet_of(worker), 50, max_in_flight=7)
    assert worker.most_in_flight == 7


async def test_requests_of_a_lost_engine_go_to_another_one() -> None:
    bad, good = FakeWorker("a", fail_with(EngineGoneError("reset by peer"))), FakeWorker("b")
    fleet = fleet_of(bad, good)
    order, num_resent = await run(fleet)
    assert order == list(range(20))
    assert num_resent == 4
    assert set(fleet.unhealthy) == {"a"}


async def test_an_engine_that_hangs_is_given_up_when_it_is_known_to_be_lost() -> None:
    hanging, good = FakeWorker("a", is_hanging=True), FakeWorker("b")
    fleet = fleet_of(hanging, good)

    def lose(fleet: FakeFleet) -> None:
        fleet.lost.add("a")
        fleet.current.pop("a", None)

    fleet.on_tick = lose
    order, num_resent = await run(fleet)
    assert order == list(range(20))
    assert num_resent == 4
    assert hanging.in_flight == 0


async def test_work_waits_for_an_engine_and_goes_on_when_one_comes() -> None:
    fleet = fleet_of()
    ticks = iter(range(100))

    def join_late(fleet: FakeFleet) -> None:
        if next(ticks) == 5:
            fleet.current["late"] = FakeWorker("late")

    fleet.on_tick = join_late
    assert await run(fleet) == (list(range(20)), 0)


async def test_without_any_engine_the_wait_has_an_end() -> None:
    with pytest.raises(RolloutLostError, match=r"no rollout engine for 0.3 s, with 20 of 20 samples"):
        await run(fleet_of(), empty_wait_seconds=0.3)


async def test_a_prompt_that_no_engine_takes_is_the_users_error() -> None:
    worker = FakeWorker("a", fail_with(EngineRefusedError("prompt is too long", status=400)))
    with pytest.raises(RequestRefusedError, match=r"raise engine.maxModelLen: prompt is too long") as refused:
        await run(fleet_of(worker, FakeWorker("b")))
    assert isinstance(refused.value, UserError)
    assert refused.value.said == "prompt is too long"
    assert worker.in_flight == 0


async def test_a_request_that_fails_everywhere_does_not_go_round_for_ever() -> None:
    def fail_one(worker: FakeWorker, bundle: Bundle) -> None:
        if bundle.seed == 3:
            raise EngineRefusedError("the engine core died", status=500)

    fleet = fleet_of(FakeWorker("a", fail_one))
    # the engine is trusted again each time
    fleet.mark_unhealthy = lambda key, error: None  # type: ignore[method-assign]
    with pytest.raises(EngineError, match=f"a request failed {MAX_ENGINES_PER_REQUEST} times") as caught:
        await run(fleet)
    assert str(caught.value).count("the engine core died") == 1


async def test_nothing_is_left_running_when_the_caller_gives_up() -> None:
    worker = FakeWorker("a", is_hanging=True)
    work = asyncio.ensure_future(run(fleet_of(worker)))
    while worker.in_flight < 4:
        assert not work.done()
        await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert worker.in_flight == 0


async def test_the_samples_of_a_prompt_travel_together_and_come_back_in_order() -> None:
    """16 prompts of 8 samples on 2 engines: one call for each prompt, and three of them fit at a time."""
    calls: list[Bundle] = []
    first, second = (FakeWorker(key, lambda worker, bundle: calls.append(bundle)) for key in "ab")
    groups = [
        GenerateRequest(prompt_ids=(prompt,), seed=1000 * prompt + sample)
        for prompt in range(16)
        for sample in range(8)
    ]
    bundles = bundle(groups, num_engines=2, max_samples=30)
    rollouts = await dispatch_over(fleet_of(first, second), max_in_flight=30).run(bundles)
    assert [rollout.completion_ids[0] for rollout in rollouts] == [request.seed for request in groups]
    assert [(call.num_samples, len(call.prompt_ids)) for call in calls] == [(8, 1)] * 16
    assert first.most_in_flight == second.most_in_flight == 24


async def test_calls_at_the_same_time_share_the_engines_and_the_earlier_one_is_served_first() -> None:
    worker = FakeWorker("a")
    dispatch = dispatch_over(fleet_of(worker))
    later = [Bundle((1,), seed=seed, num_samples=1) for seed in range(100, 110)]
    first, second = await asyncio.gather(dispatch.run(singles(10)), dispatch.run(later))
    assert [rollout.completion_ids[0] for rollout in first] == list(range(10))
    assert [rollout.completion_ids[0] for rollout in second] == list(range(100, 110))
    assert worker.most_in_flight == 4
    assert worker.sampled[:10] == list(range(10))
    assert dispatch.generation() is None


async def test_an_evaluation_does_not_wait_behind_groups_that_are_sampled_ahead() -> None:
    worker = FakeWorker("a")
    dispatch = dispatch_over(fleet_of(worker))
    evaluated = [Bundle((1,), seed=seed, num_samples=1, is_evaluation=True) for seed in (100, 101)]
    await asyncio.gather(dispatch.run(singles(20)), dispatch.run(evaluated))
    assert worker.sampled[:2] == [100, 101]


async def test_a_call_that_fails_or_is_cancelled_ends_alone_and_frees_its_places() -> None:
    def refuse_seven(worker: FakeWorker, bundle: Bundle) -> None:
        if bundle.seed == 7:
            raise EngineRefusedError("too long", status=400)

    hanging, worker = FakeWorker("a", is_hanging=True), FakeWorker("b", refuse_seven)
    fleet = fleet_of(hanging)
    dispatch = dispatch_over(fleet)
    cancelled = asyncio.ensure_future(dispatch.run(singles(4)))
    failing = asyncio.ensure_future(dispatch.run([Bundle((1,), seed=7, num_samples=1)]))
    good = asyncio.ensure_future(dispatch.run(singles(6)))
    await until_in_flight(hanging, 4)
    found = dispatch.generation()
    assert found is not None and (found.num_samples, found.num_done) == (11, 0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    fleet.current = {"b": worker}
    fleet.lost.add("a")
    with pytest.raises(UserError, match="shorten it"):
        await failing
    assert [rollout.completion_ids[0] for rollout in await good] == list(range(6))


async def test_what_the_fleet_raises_ends_every_call_and_a_later_one_is_served() -> None:
    fleet = fleet_of(FakeWorker("a", is_hanging=True))
    dispatch = dispatch_over(fleet)
    calls = [asyncio.ensure_future(dispatch.run(singles(2))) for _ in range(2)]
    await until_in_flight(fleet.current["a"], 4)
    working = fleet.workers

    def broken() -> Mapping[str, FakeWorker]:
        raise RuntimeError("the watcher has ended")

    fleet.workers = broken  # type: ignore[method-assign]
    for call in calls:
        with pytest.raises(RuntimeError, match="the watcher has ended"):
            await call
    fleet.workers = working  # type: ignore[method-assign]
    fleet.current["a"].is_hanging = False
    assert len(await dispatch.run(singles(2))) == 2


def tokens_of(bundle: Bundle) -> int:
    return bundle.num_tokens(max_tokens=10)


async def test_by_tokens_an_engine_with_few_long_samples_is_busier_than_one_with_many_short_ones() -> None:
    first, second = FakeWorker("a", is_hanging=True), FakeWorker("b", is_hanging=True)
    dispatch = dispatch_over(fleet_of(first, second), max_in_flight=16, num_tokens=tokens_of)
    long = Bundle(prompt_ids=(1,) * 90, seed=0, num_samples=1)  # 100 tokens
    short = [Bundle(prompt_ids=(2 + index,), seed=1, num_samples=3, max_tokens=9) for index in range(4)]
    calls = [asyncio.ensure_future(dispatch.run([bundle])) for bundle in (long, *short)]
    await until_in_flight(second, 12)
    assert first.in_flight == 1
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize(
    ("num_elsewhere", "keys"),
    [(1, ["a", "a", "a"]), (0, ["a", "a", "b"])],
)
async def test_bundles_of_a_prompt_stay_with_an_engine_until_it_has_more_than_a_bundle_more_to_do(
    num_elsewhere: int, keys: list[str]
) -> None:
    """The other engine has so many bundles of the same size."""
    first, second = FakeWorker("a", is_hanging=True), FakeWorker("b", is_hanging=True)
    fleet = fleet_of(second)
    dispatch = dispatch_over(fleet, max_in_flight=64, num_tokens=tokens_of)
    others = [Bundle(prompt_ids=(9,), seed=seed, num_samples=4) for seed in range(0, 4 * num_elsewhere, 4)]
    calls = [asyncio.ensure_future(dispatch.run(others))]
    await until_in_flight(second, 4 * num_elsewhere)
    fleet.current["a"] = first
    group = [Bundle(prompt_ids=(1,), seed=seed, num_samples=4) for seed in (0, 4, 8)]
    calls.append(asyncio.ensure_future(dispatch.run(group)))
    await until_in_flight(first, 4 * keys.count("a"))
    assert second.in_flight == 4 * (num_elsewhere + keys.count("b"))
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_a_prompt_whose_engine_is_lost_stays_with_the_next_one() -> None:
    lost, good, idle = FakeWorker("a", is_hanging=True), FakeWorker("b"), FakeWorker("c")
    fleet = fleet_of(lost)
    dispatch = dispatch_over(fleet, max_in_flight=64, num_tokens=tokens_of)
    group = [Bundle(prompt_ids=(1,), seed=seed, num_samples=4) for seed in (0, 4, 8)]
    call = asyncio.ensure_future(dispatch.run(group))
    await until_in_flight(lost, 12)
    fleet.current = {"b": good, "c": idle}
    fleet.lost.add("a")
    assert [rollout.completion_ids[0] for rollout in await call] == list(range(12))
    assert (len(good.sampled), len(idle.sampled)) == (8, 4)


async def test_the_turns_of_a_group_stay_with_the_engine_that_has_its_prompt() -> None:
    """Each turn is a call of its own. The first one finds the first engine busy."""
    first, second = FakeWorker("a", is_hanging=True), FakeWorker("b")
    dispatch = dispatch_over(fleet_of(first, second), max_in_flight=64, num_tokens=tokens_of)
    busy = asyncio.ensure_future(dispatch.run([Bundle((9,), seed=9, num_samples=1)]))
    await until_in_flight(first, 1)
    for number, more in enumerate([(), (3,), (3, 4)]):
        turn = Bundle((1, 2, *more), seed=number, num_samples=1, max_tokens=2, num_group_tokens=2)
        [rollout] = await dispatch.run([turn])
        assert rollout.engine == "b"
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


in_both_modes = pytest.mark.parametrize(
    "num_tokens", [pytest.param(None, id="synchronous"), pytest.param(tokens_of, id="asynchronous")]
)
NumTokens = Callable[[Bundle], int] | None
GROUP_PROMPT = (1, 2)


def turn_of(session: int, *, number: int = 0) -> Bundle:
    """A turn of a session; all sessions are of one group. The turn with number 2 rewrites the history."""
    prompt_ids = GROUP_PROMPT if number == 0 else (2 - number, 2, session, number)
    return Bundle(prompt_ids, seed=10 * session + number, num_samples=1, num_group_tokens=2, session=session)


async def engines_of(dispatch: Dispatch, sessions: Iterable[int], *, number: int = 0) -> dict[int, str]:
    """Session -> the engine that samples this turn of it, when all of them ask at once in this order."""
    asked = list(sessions)
    answers = [dispatch.run([turn_of(session, number=number)]) for session in asked]
    found = await asyncio.wait_for(asyncio.gather(*answers), HUNG_SECONDS)
    return {session: rollout.engine for session, [rollout] in zip(asked, found, strict=True)}


@in_both_modes
async def test_a_session_stays_on_the_engine_that_has_its_prefix(num_tokens: NumTokens) -> None:
    """Also where others are less loaded, and with another history."""
    dispatch = dispatch_over(
        fleet_of(FakeWorker("a"), FakeWorker("b")), max_in_flight=64, num_tokens=num_tokens
    )
    before = await engines_of(dispatch, range(6))
    assert set(before.values()) == {"a", "b"}
    assert await engines_of(dispatch, reversed(range(6)), number=1) == before
    on_one = [session for session in before if before[session] == "b"]
    assert await engines_of(dispatch, on_one, number=2) == dict.fromkeys(on_one, "b")


@in_both_modes
async def test_sessions_of_a_lost_engine_move_once_and_the_others_stay(num_tokens: NumTokens) -> None:
    fleet = fleet_of(FakeWorker("a"), FakeWorker("b"), FakeWorker("c"))
    dispatch = dispatch_over(fleet, max_in_flight=64, num_tokens=num_tokens)
    before = await engines_of(dispatch, range(9))
    assert set(before.values()) == {"a", "b", "c"}
    fleet.current.pop("a")
    fleet.lost.add("a")
    after = await engines_of(dispatch, range(9), number=1)
    assert set(after.values()) == {"b", "c"}
    assert all(after[session] == before[session] for session in before if before[session] != "a")
    # one that joins gets new sessions, and no turn of those that there are
    fleet.current["d"] = FakeWorker("d")
    assert await engines_of(dispatch, range(9), number=2) == after
    assert "d" in (await engines_of(dispatch, range(100, 109))).values()


@in_both_modes
async def test_a_session_whose_engine_is_full_goes_to_another_one_and_moves_no_other(
    num_tokens: NumTokens,
) -> None:
    dispatch = dispatch_over(
        fleet_of(FakeWorker("a"), FakeWorker("b")), max_in_flight=2, num_tokens=num_tokens
    )
    for session in range(3):  # each is alone, so that the first engine gets it
        assert await engines_of(dispatch, [session]) == {session: "a"}
    assert await engines_of(dispatch, range(3), number=1) == {0: "a", 1: "a", 2: "b"}
    for session, key in {0: "a", 1: "a", 2: "b"}.items():
        assert await engines_of(dispatch, [session], number=2) == {session: key}


@in_both_modes
@pytest.mark.parametrize(("num_busy", "stays"), [(TURNS_AHEAD, True), (TURNS_AHEAD + 1, False)])
async def test_a_session_stays_until_its_engine_has_so_many_turns_more_to_do_than_another_one(
    num_busy: int, stays: bool, num_tokens: NumTokens
) -> None:
    first, second = FakeWorker("a"), FakeWorker("b", is_hanging=True)
    fleet = fleet_of(first)
    dispatch = dispatch_over(fleet, max_in_flight=64, num_tokens=num_tokens)
    assert await engines_of(dispatch, range(num_busy + 1)) == dict.fromkeys(range(num_busy + 1), "a")
    first.is_hanging, fleet.current["b"] = True, second
    asked = [
        asyncio.ensure_future(dispatch.run([turn_of(session, number=1)])) for session in range(num_busy + 1)
    ]
    await until_in_flight(first, num_busy + stays)
    assert second.in_flight == (not stays)
    for call in asked:
        call.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize(("num_others", "key"), [(NUM_REMEMBERED - 1, "b"), (NUM_REMEMBERED, "a")])
async def test_the_session_that_asked_longest_ago_is_forgotten_when_there_are_too_many(
    num_others: int, key: str
) -> None:
    first, second = FakeWorker("a"), FakeWorker("b")
    fleet = fleet_of(second)
    dispatch = dispatch_over(fleet, max_in_flight=NUM_REMEMBERED)
    assert await engines_of(dispatch, [0]) == {0: "b"}
    fleet.current = {"a": first, "b": second}
    await dispatch.run([turn_of(session) for session in range(1, num_others + 1)])
    assert await engines_of(dispatch, [0], number=1) == {0: key}
