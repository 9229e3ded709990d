"""Engines and a fleet of them as the dispatch sees them, which are fakes: they fail, hang and hand over as a
test says."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.dispatch import Dispatch, DispatchLimits
from grpo_runtime.engines.fleet.engine_calls import Bundle
from grpo_runtime.rollouts.interface import (
    Rollout,
    VersionSpan,
)

HUNG_SECONDS = 60.0
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
        return bundle.so_far is None or self.version >= bundle.so_far.versions[-1].version

    def _rollout(self, bundle: Bundle, seed: int) -> Rollout:
        is_aborted = seed in self.hands_over
        num_left = self.num_tokens - len(bundle.ids_so_far)
        num_tokens = min(num_left, self.hands_over_tokens) if is_aborted else num_left
        return Rollout(
            prompt_ids=bundle.prompt_ids,
            completion_ids=tuple(seed + len(bundle.ids_so_far) + place for place in range(num_tokens)),
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


def dispatch_over(
    fleet: FakeFleet,
    *,
    max_in_flight: int = 4,
    empty_wait_seconds: float = 60.0,
    num_tokens: Callable[[Bundle], int] | None = None,
) -> Dispatch:
    limits = DispatchLimits(max_in_flight, empty_wait_seconds=empty_wait_seconds, poll_seconds=0.01)
    return Dispatch(fleet, limits=limits, clock=time.monotonic, num_tokens=num_tokens)


async def until_in_flight(worker: FakeWorker, count: int) -> None:
    for _ in range(1000):
        if worker.in_flight == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{worker.in_flight} of {count} samples are in flight")
