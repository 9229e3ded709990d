"""How long work waits while no engine can be given any. The clock is the test's own."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.dispatch import Dispatch, DispatchLimits
from grpo_runtime.engines.fleet.engine_calls import Bundle
from grpo_runtime.rollouts.interface import Rollout, RolloutLostError, VersionSpan

EMPTY_WAIT_SECONDS = 60.0
NUM_REQUESTS = 4


@dataclass
class SteppedWorker:
    """An engine that answers nothing before it is told to."""

    key: str
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    def may_take(self, bundle: Bundle) -> bool:
        return True

    async def sample(self, bundle: Bundle) -> list[Rollout]:
        await self.may_answer.wait()
        span = VersionSpan(PolicyVersion(1, 0), 0, 1)
        return [Rollout(bundle.prompt_ids, (bundle.seed,), (-1.0,), (span,), is_terminated=True, engine="e")]


class TimedFleet:
    """A source of workers whose time passes only when the dispatch waits: `at` says what happens when."""

    def __init__(self, *workers: SteppedWorker, at: Mapping[int, Callable[[], None]]) -> None:
        self.now = 0
        self.current = {worker.key: worker for worker in workers}
        self.lost: set[str] = set()
        self._at = at

    def workers(self) -> Mapping[str, SteppedWorker]:
        return self.current

    def is_lost(self, key: str) -> bool:
        return key in self.lost

    def mark_unhealthy(self, key: str, error: Exception) -> None:
        raise AssertionError(f"no worker fails here: {error}")

    def goes_on(self, bundle: Bundle) -> bool:
        return False

    async def hand_over(self, key: str) -> None:
        raise AssertionError("no completion goes on here")

    async def changed(self, *, timeout_seconds: float) -> None:
        # the dispatch has looked at what the last second brought, as often as it takes
        for _ in range(10):
            await asyncio.sleep(0)
        self.now += 1
        self._at.get(self.now, lambda: None)()

    def join(self, worker: SteppedWorker) -> None:
        self.current[worker.key] = worker

    def lose(self, key: str) -> None:
        self.lost.add(key)
        del self.current[key]


async def run(fleet: TimedFleet) -> list[Rollout]:
    limits = DispatchLimits(max_in_flight=8, empty_wait_seconds=EMPTY_WAIT_SECONDS, poll_seconds=1.0)
    bundles = [Bundle(prompt_ids=(1,), seed=seed, num_samples=1) for seed in range(NUM_REQUESTS)]
    return await Dispatch(fleet, limits=limits, clock=lambda: float(fleet.now)).run(bundles)


async def test_the_wait_begins_when_the_last_engine_is_lost_and_not_when_the_step_began() -> None:
    late = SteppedWorker("late")
    late.may_answer.set()
    fleet = TimedFleet(
        SteppedWorker("first"), at={1000: lambda: fleet.lose("first"), 1055: lambda: fleet.join(late)}
    )
    rollouts = await run(fleet)
    assert [rollout.completion_ids for rollout in rollouts] == [(seed,) for seed in range(NUM_REQUESTS)]


async def test_the_wait_is_over_when_it_was_without_engines_for_so_long_since_the_last_one() -> None:
    fleet = TimedFleet(SteppedWorker("first"), at={1000: lambda: fleet.lose("first")})
    with pytest.raises(RolloutLostError, match="no rollout engine for 60 s, with 4 of 4 samples"):
        await run(fleet)
    assert 1000 + EMPTY_WAIT_SECONDS <= fleet.now <= 1000 + EMPTY_WAIT_SECONDS + 3


async def test_an_engine_in_between_begins_the_wait_anew() -> None:
    last = SteppedWorker("last")
    last.may_answer.set()
    fleet = TimedFleet(
        at={
            50: lambda: fleet.join(SteppedWorker("short")),
            55: lambda: fleet.lose("short"),
            110: lambda: fleet.join(last),
        }
    )
    assert len(await run(fleet)) == NUM_REQUESTS
