"""Which turns the engines are asked for together, over engines that are a fake."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from grpo_runtime.rollouts.function.turn_sampler import TurnSampler
from grpo_runtime.rollouts.interface import EngineError, GenerateRequest, Rollout

HUNG_SECONDS = 60.0
"""For what comes in a moment, when it never comes."""


class HeldEngines:
    """Each call returns, or raises, what the test puts into `ends`. `calls` are the seeds of each, and
    `sessions` those of all requests by their seeds."""

    def __init__(self, *, is_concurrent: bool = False) -> None:
        self.is_concurrent = is_concurrent
        self.calls: list[list[int]] = []
        self.sessions: dict[int, list[int | None]] = {}
        self.num_given_up = 0
        self.begun: asyncio.Queue[list[int]] = asyncio.Queue()
        self.ends: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def generate(self, requests: Sequence[GenerateRequest], *, stays_awake: bool) -> list[Rollout]:
        assert stays_awake
        seeds = [request.seed for request in requests]
        self.calls.append(seeds)
        for request in requests:
            self.sessions.setdefault(request.seed, []).append(request.session)
        self.begun.put_nowait(seeds)
        try:
            error = await self.ends.get()
        except asyncio.CancelledError:
            self.num_given_up += 1
            raise
        if error is not None:
            raise error
        return [Rollout(request.prompt_ids, (request.seed,), (-1.0,), (), True, "a") for request in requests]


class Turns:
    """Completions that have joined; number i asks with seed i."""

    def __init__(self, engines: HeldEngines, *, num_joined: int, quiet_seconds: float = HUNG_SECONDS) -> None:
        self.engines = engines
        self.sampler = TurnSampler(engines, quiet_seconds=quiet_seconds)  # type: ignore[arg-type]
        self.leave = [ExitStack() for _ in range(num_joined)]
        self.numbers = [stack.enter_context(self.sampler.joined()) for stack in self.leave]

    def ask(self, number: int, *, is_evaluation: bool = False) -> asyncio.Task[Rollout]:
        request = GenerateRequest((1,), seed=number, is_evaluation=is_evaluation)
        return asyncio.create_task(self.sampler.sample(self.numbers[number], request))

    async def next_call(self, *, ends: Exception | None = None) -> list[int]:
        """The seeds of the next call, which ends at once."""
        async with asyncio.timeout(HUNG_SECONDS / 2):
            seeds = await self.engines.begun.get()
        self.engines.ends.put_nowait(ends)
        return seeds


async def tokens(*asked: asyncio.Task[Rollout]) -> list[int]:
    return [rollout.completion_ids[0] for rollout in await asyncio.gather(*asked)]


async def test_turns_of_all_that_have_joined_are_one_call_in_the_order_of_joining() -> None:
    turns = Turns(HeldEngines(), num_joined=3)
    asked = [turns.ask(number) for number in (2, 0, 1)]
    assert await turns.next_call() == [0, 1, 2]
    assert await tokens(*asked) == [2, 0, 1]


async def test_a_turn_was_sampled_for_as_long_as_its_call_took_whenever_it_was_asked_for() -> None:
    turns, now = Turns(HeldEngines(), num_joined=2), [10.0]
    turns.sampler = TurnSampler(turns.engines, quiet_seconds=HUNG_SECONDS, clock=lambda: now[0])  # type: ignore[arg-type]
    turns.numbers = [stack.enter_context(turns.sampler.joined()) for stack in turns.leave]
    early = turns.ask(0)
    await asyncio.sleep(0)
    now[0] = 17.0
    late = turns.ask(1)
    assert await turns.engines.begun.get() == [0, 1]
    now[0] = 19.5
    turns.engines.ends.put_nowait(None)
    assert [(await asked).sampling_seconds for asked in (early, late)] == [2.5, 2.5]


async def test_one_that_leaves_is_not_waited_for() -> None:
    turns = Turns(HeldEngines(), num_joined=2)
    asked = turns.ask(1)
    await asyncio.sleep(0)
    assert turns.engines.calls == []
    turns.leave[0].close()
    assert await turns.next_call() == [1]
    assert await tokens(asked) == [1]


async def test_one_that_takes_long_is_not_waited_for_and_asks_in_the_next_call() -> None:
    turns = Turns(HeldEngines(), num_joined=2, quiet_seconds=0.01)
    first = turns.ask(0)
    assert await turns.engines.begun.get() == [0]
    second = turns.ask(1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert turns.engines.calls == [[0]]
    turns.engines.ends.put_nowait(None)
    assert await turns.next_call() == [1]
    assert await tokens(first, second) == [0, 1]


async def test_engines_that_take_several_calls_get_each_turn_at_once() -> None:
    turns = Turns(HeldEngines(is_concurrent=True), num_joined=3)
    asked = [turns.ask(number) for number in (1, 0)]
    assert [await turns.next_call() for _ in asked] == [[1], [0]]
    assert await tokens(*asked) == [1, 0]


@pytest.mark.parametrize("is_concurrent", [True, False])
async def test_the_turns_of_a_completion_are_a_session_and_those_of_another_one_are_another(
    is_concurrent: bool,
) -> None:
    turns = Turns(HeldEngines(is_concurrent=is_concurrent), num_joined=2)
    for order in ((0, 1), (1, 0)):
        asked = [turns.ask(number) for number in order]
        for _ in range(2 if is_concurrent else 1):
            await turns.next_call()
        await tokens(*asked)
    (first, again), (other, other_again) = turns.engines.sessions[0], turns.engines.sessions[1]
    assert first == again and other == other_again
    assert len({first, other, None}) == 3


async def test_turns_of_evaluations_are_calls_of_their_own() -> None:
    turns = Turns(HeldEngines(), num_joined=3, quiet_seconds=0.01)
    asked = [turns.ask(0, is_evaluation=True), turns.ask(1), turns.ask(2, is_evaluation=True)]
    assert [await turns.next_call() for _ in range(2)] == [[0, 2], [1]]
    assert await tokens(*asked) == [0, 1, 2]


async def test_a_call_that_fails_is_an_error_of_its_turns_and_of_no_others() -> None:
    turns = Turns(HeldEngines(), num_joined=2)
    asked = [turns.ask(0), turns.ask(1)]
    await turns.next_call(ends=EngineError("gone"))
    for one in asked:
        with pytest.raises(EngineError, match="gone"):
            await one
    again = [turns.ask(0), turns.ask(1)]
    await turns.next_call()
    assert await tokens(*again) == [0, 1]


async def test_a_call_is_given_up_when_nobody_waits_for_it_any_more_and_not_before() -> None:
    turns = Turns(HeldEngines(), num_joined=2)
    first, second = turns.ask(0), turns.ask(1)
    await turns.engines.begun.get()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert turns.engines.num_given_up == 0
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    again = [turns.ask(0), turns.ask(1)]
    assert await turns.next_call() == [0, 1]
    assert turns.engines.num_given_up == 1
    assert await tokens(*again) == [0, 1]


async def test_a_turn_that_is_given_up_before_its_call_is_not_asked_for() -> None:
    turns = Turns(HeldEngines(), num_joined=2)
    given_up = turns.ask(0)
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    turns.leave[0].close()
    asked = turns.ask(1)
    assert await turns.next_call() == [1]
    assert await tokens(asked) == [1]
