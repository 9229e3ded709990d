"""Work for a fleet whose engines fail in every way, without engines."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.dispatch import (
    MAX_ENGINES_PER_REQUEST,
    MOST_EMPTY_IN_A_ROW,
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
    VersionSpan,
)

VERSION = PolicyVersion(1, 0)
Behaviour = Callable[["FakeWorker", Bundle], None]


@dataclass
class FakeWorker:
    """An engine that answers with its seed, unless `behave` raises. With `num_tokens` it samples so many, of
    which each is the seed of its call plus its place; the seeds in `hands_over` it aborts after one."""

    key: str
    behave: Behaviour = lambda worker, bundle: None
    is_hanging: bool = False
    sampled: list[int] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    version: PolicyVersion = VERSION
    num_tokens: int = 1
    hands_over: set[int] = field(default_factory=set)
    hands_over_tokens: int = 1

    async def sample(self, bundle: Bundle) -> list[Rollout]:
        self.in_flight += bundle.num_samples
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0)
            if self.is_hanging:
                await asyncio.Event().wait()
            self.behave(self, bundle)
        finally:
            self.in_flight -= bundle.num_samples
        seeds = [bundle.seed + number for number in range(bundle.num_samples)]
        self.sampled += seeds
        return [self._rollout(bundle, seed) for seed in seeds]

    def may_take(self, bundle: Bundle) -> bool:
        return bundle.begun is None or self.version >= bundle.begun.versions[-1].version

    def _rollout(self, bundle: Bundle, seed: int) -> Rollout:
        is_aborted = seed in self.hands_over
        num_left = self.num_tokens - len(bundle.begun_ids)
        num_tokens = min(num_left, self.hands_over_tokens) if is_aborted else num_left
        return Rollout(
            prompt_ids=bundle.prompt_ids,
            completion_ids=tuple(seed + len(bundle.begun_ids) + place for place in range(num_tokens)),
            rollout_logprobs=(-1.0,) * num_tokens,
            versions=(VersionSpan(self.version, 0, num_tokens),) if num_tokens else (),
            is_terminated=not is_aborted,
            engine=self.key,
            is_aborted=is_aborted,
        )


@dataclass
class FakeFleet:
    """A source of workers that a test changes as it likes."""

    current: dict[str, FakeWorker]
    lost: set[str] = field(default_factory=set)
    unhealthy: list[str] = field(default_factory=list)
    on_tick: Callable[["FakeFleet"], None] = lambda fleet: None
    aborts: bool = False
    """Whether completions go on from what engines hand over."""
    told_to_hand_over: list[str] = field(default_factory=list)
    on_hand_over: Callable[[str], None] = lambda key: None

    def workers(self) -> Mapping[str, FakeWorker]:
        return self.current

    def is_lost(self, key: str) -> bool:
        return key in self.lost

    def mark_unhealthy(self, key: str, error: Exception) -> None:
        self.unhealthy.append(key)
        self.current.pop(key, None)

    def goes_on(self, bundle: Bundle) -> bool:
        return self.aborts and not bundle.is_evaluation

    async def hand_over(self, key: str) -> None:
        self.told_to_hand_over.append(key)
        self.on_hand_over(key)

    async def changed(self, *, timeout_seconds: float) -> None:
        await asyncio.sleep(timeout_seconds)
        self.on_tick(self)


def fleet_of(*workers: FakeWorker) -> FakeFleet:
    return FakeFleet(current={worker.key: worker for worker in workers})


def singles(count: int) -> list[Bundle]:
    return [Bundle(prompt_ids=(index,), seed=index, num_samples=1) for index in range(count)]


async def run(fleet: FakeFleet, count: int = 20, *, max_in_flight: int = 4) -> tuple[list[int], int]:
    """The seeds of the rollouts in the order given, and how many were sent again."""
    limits = DispatchLimits(max_in_flight=max_in_flight, empty_wait_seconds=0.3, poll_seconds=0.01)
    dispatch = Dispatch(fleet, limits=limits, clock=time.monotonic)
    rollouts = await asyncio.wait_for(dispatch.run(singles(count)), 10)
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
    limits = DispatchLimits(max_in_flight=6, empty_wait_seconds=0.3, poll_seconds=0.01)
    dispatch = Dispatch(fleet_of(bad, good), limits=limits, clock=time.monotonic)
    running = dispatch.run(bundles, on_finished=lambda index, rollout: finished.append((index, rollout)))
    rollouts = await asyncio.wait_for(running, 10)
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
    rollouts = await asyncio.wait_for(dispatch.run(singles(3)), 10)
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
        await run(fleet_of())


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
    limits = DispatchLimits(max_in_flight=30, empty_wait_seconds=0.3, poll_seconds=0.01)
    bundles = bundle(groups, num_engines=2, max_samples=limits.max_in_flight)
    rollouts = await Dispatch(fleet_of(first, second), limits=limits, clock=time.monotonic).run(bundles)
    assert [rollout.completion_ids[0] for rollout in rollouts] == [request.seed for request in groups]
    assert [(call.num_samples, len(call.prompt_ids)) for call in calls] == [(8, 1)] * 16
    assert first.most_in_flight == second.most_in_flight == 24


def dispatch_over(
    fleet: FakeFleet, *, max_in_flight: int = 4, num_tokens: Callable[[Bundle], int] | None = None
) -> Dispatch:
    limits = DispatchLimits(max_in_flight=max_in_flight, empty_wait_seconds=0.3, poll_seconds=0.01)
    return Dispatch(fleet, limits=limits, clock=time.monotonic, num_tokens=num_tokens)


async def until_in_flight(worker: FakeWorker, count: int) -> None:
    for _ in range(1000):
        if worker.in_flight == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{worker.in_flight} of {count} samples are in flight")


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


def dispatch_of(fleet: FakeFleet, *, max_in_flight: int = 4) -> Dispatch:
    limits = DispatchLimits(max_in_flight=max_in_flight, empty_wait_seconds=0.3, poll_seconds=0.01)
    return Dispatch(fleet, limits=limits, clock=time.monotonic)


async def test_a_completion_that_is_handed_over_goes_on_from_its_tokens_on_another_engine() -> None:
    newer = PolicyVersion(1, 1)
    first = FakeWorker("a", num_tokens=4, hands_over={10}, hands_over_tokens=2)
    second = FakeWorker("b", num_tokens=4, version=newer)
    fleet = fleet_of(first)
    fleet.aborts = True
    first.behave = lambda worker, bundle: fleet.current.update({"b": second})
    found: list[tuple[int, Rollout]] = []
    dispatch = dispatch_of(fleet)
    first_bundle = Bundle(prompt_ids=(1,), seed=9, num_samples=2)

    def on_finished(number: int, rollout: Rollout) -> None:
        found.append((number, rollout))
        fleet.current.pop("a", None)

    rollouts = await asyncio.wait_for(dispatch.run([first_bundle], on_finished=on_finished), 10)
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

    dispatch = dispatch_of(fleet, max_in_flight=1)
    rollouts = await asyncio.wait_for(dispatch.run(singles(3), on_finished=on_finished), 10)
    assert taken == [1, 2, 0]
    assert rollouts[0].completion_ids == (0, 1, 2)
    assert older.sampled == [1, 2]


async def test_without_the_mode_what_is_handed_over_is_sampled_anew() -> None:
    first = FakeWorker("a", num_tokens=3, hands_over={0})
    first.behave = lambda worker, bundle: worker.hands_over.clear() if worker.sampled else None
    found: list[tuple[int, bool]] = []
    dispatch = dispatch_of(fleet_of(first))
    rollouts = await asyncio.wait_for(
        dispatch.run(singles(1), on_finished=lambda number, one: found.append((number, one.is_aborted))), 10
    )
    assert rollouts[0].completion_ids == (0, 1, 2)
    assert (found, dispatch.num_resent, first.sampled) == ([(0, False)], 1, [0, 0])


async def test_a_request_that_is_handed_over_again_and_again_without_a_token_counts_as_failed() -> None:
    engine = FakeWorker("a", num_tokens=3, hands_over={0}, hands_over_tokens=0)
    fleet = fleet_of(engine)
    fleet.aborts = True
    with pytest.raises(EngineError, match="new weights 16 times before they sampled one token of it"):
        await asyncio.wait_for(dispatch_of(fleet).run(singles(1)), 10)
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

    sampling = asyncio.ensure_future(dispatch_of(fleet).run(singles(4), on_finished=on_finished))
    num_left = 4
    while num_left:
        async with asyncio.timeout(10):
            calls = [await asked.get() for _ in range(num_left)]
        for place, (given, answer) in enumerate(calls):
            is_last = place == 0 and len(given.begun_ids) + 1 == engine.num_tokens
            engine.hands_over = set() if is_last else {given.seed}
            engine.hands_over_tokens = int(place == 0)
            answer.set_result([engine._rollout(given, given.seed)])
            num_left -= is_last
    await asyncio.wait_for(sampling, 10)
    assert (finished, fleet.unhealthy) == ([0, 1, 2, 3], [])


async def test_an_engine_that_is_full_and_may_alone_go_on_with_a_completion_holds_up_no_other() -> None:
    newest = PolicyVersion(1, 1)
    newer, older = FakeWorker("a", is_hanging=True, version=newest), FakeWorker("b")
    dispatch = dispatch_over(fleet_of(newer, older), max_in_flight=1)
    begun = Rollout((7,), (1,), (-1.0,), (VersionSpan(newest, 0, 1),), False, "a", is_aborted=True)
    bundles = [Bundle(prompt_ids=(7,), seed=seed, num_samples=1, begun=begun) for seed in (7, 8)]
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
        await asyncio.wait_for(dispatch_of(fleet).run([judged]), 10)
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
        worker.hands_over = set() if bundle.begun else {0}
        if next(calls):
            raise EngineGoneError("reset by peer")

    def mark_unhealthy(key: str, error: Exception) -> None:
        fleet.unhealthy.append(key)

    engine.behave = behave
    fleet.mark_unhealthy = mark_unhealthy  # type: ignore[method-assign]
    [rollout] = await asyncio.wait_for(dispatch_of(fleet).run(singles(1)), 10)
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
        dispatch_of(fleet).run(
            singles(2),
            on_finished=lambda number, one: found.append((number, one.completion_ids, one.is_aborted)),
        ),
        10,
    )
    assert fleet.told_to_hand_over == ["a"]
    assert found[0] == (0, (0,), True)
    assert [rollout.completion_ids for rollout in rollouts] == [(0, 1, 2), (1, 2, 3)]
