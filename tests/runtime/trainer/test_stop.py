"""A request to stop, as the ranks notice it. One process is rank 0 of 1."""

import asyncio
import signal

import pytest

from grpo_runtime.trainer.distributed import Command, Ranks, StopRequest, StopRequestedError

HUNG_SECONDS = 60.0
"""The limit for something that comes at once when nothing hangs."""


class Stopping:
    """Work that never ends by itself; it knows whether it was cancelled."""

    def __init__(self) -> None:
        self.is_cancelled = False

    async def wait(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cancelled = True


def nothing() -> None:
    pass


async def test_a_stop_ends_what_rank_0_waits_for_and_leaves_no_work_behind(ranks: Ranks) -> None:
    stop, work = StopRequest(), Stopping()
    alone = Ranks(rank=0, world_size=1, stop=stop)
    ticks: list[int] = []

    def ask_at_the_second_tick() -> None:
        ticks.append(len(ticks))
        stop.is_set = len(ticks) >= 2
        assert len(ticks) < 5, "the stop was ignored"

    async with asyncio.timeout(HUNG_SECONDS):
        with pytest.raises(StopRequestedError):
            await alone.attend(work.wait(), on_tick=ask_at_the_second_tick)
    assert (len(ticks), work.is_cancelled) == (2, True)


async def test_what_comes_before_an_end_is_waited_for_although_a_stop_was_asked_for(ranks: Ranks) -> None:
    stop, is_committed = StopRequest(), asyncio.Event()
    stop.is_set = True
    ticks: list[int] = []

    def commit_at_the_second_tick() -> None:
        ticks.append(len(ticks))
        if len(ticks) == 2:
            is_committed.set()

    alone = Ranks(rank=0, world_size=1, stop=stop)
    async with asyncio.timeout(HUNG_SECONDS):
        await alone.attend(is_committed.wait(), on_tick=commit_at_the_second_tick, ends_on_stop=False)
    assert len(ticks) == 2


async def test_what_rank_0_waited_for_comes_back_and_so_does_its_error(ranks: Ranks) -> None:
    async def gives(value: int) -> int:
        return 10 // value

    assert await ranks.attend(gives(5), on_tick=nothing) == 2
    with pytest.raises(ZeroDivisionError):
        await ranks.attend(gives(0), on_tick=nothing)


@pytest.mark.parametrize("command", [command for command in Command if command is not Command.NONE])
def test_a_requested_stop_voids_the_commands_of_a_step_and_no_others(ranks: Ranks, command: Command) -> None:
    stop = StopRequest()
    alone = Ranks(rank=0, world_size=1, stop=stop)
    alone.announce(command)
    stop.is_set = True
    if command in (Command.PROBE, Command.SYNC, Command.TRAIN):
        with pytest.raises(StopRequestedError):
            alone.announce(command)
    else:
        alone.announce(command)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_both_signals_are_remembered_and_end_nothing(number: signal.Signals) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    stop = StopRequest()
    stop.listen()
    try:
        signal.raise_signal(number)
        assert stop.is_set
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


async def test_a_rank_tells_at_every_meeting_how_many_samples_its_engine_has_finished(ranks: Ranks) -> None:
    alone = Ranks(rank=0, world_size=1, stop=StopRequest())
    alone.announce(Command.NONE)
    assert alone.num_finished == (0,)
    alone.report_engine_state(num_finished=lambda: 5)
    alone.announce(Command.TRAIN)
    assert alone.num_finished == (5,)
