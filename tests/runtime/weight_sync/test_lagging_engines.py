"""Engines that do not come to an end with what another one has done."""

import asyncio

import pytest
from receiver_harness import Receiver, prepared
from test_several_engines import sync

from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.interface import Peer, SenderSettings, WeightSyncError
from grpo_runtime.weight_sync.registry import GLOO
from grpo_runtime.weight_sync.sender import for_each_engine

FAR_AWAY_SECONDS = 300.0


class ShortLag(Deadlines):
    def lag_seconds(self, took: float) -> float:
        return 0.2


async def never() -> None:
    await asyncio.Event().wait()


async def test_an_engine_that_hangs_in_its_first_load_does_not_hold_one_that_is_done() -> None:
    good, stuck = Receiver("gloo"), Receiver("gloo")

    async def hang(version: str) -> None:
        await never()

    stuck.finish = hang  # type: ignore[method-assign]
    engines = {"good": good, "stuck": stuck}
    peers = {name: Peer(engine, host="127.0.0.1") for name, engine in engines.items()}
    sender = GLOO.make_sender(peers, SenderSettings(ShortLag(FAR_AWAY_SECONDS)))
    async with asyncio.timeout(FAR_AWAY_SECONDS / 5):
        assert await sender.init(engines) == {}
        assert await sync(sender, prepared("gloo", 1), engines=set(engines), version="1.1") == {"stuck"}
    assert (good.version, stuck.version) == ("1.1", "initial")
    await sender.shutdown()


async def test_nobody_lags_behind_an_engine_that_refuses() -> None:
    has_refused = asyncio.Event()

    async def refuse() -> None:
        has_refused.set()
        raise WeightSyncError("no such thing here")

    async def take_longer() -> None:
        await has_refused.wait()
        # many turns of the loop: a deadline that is over would end it
        for _ in range(1000):
            await asyncio.sleep(0)

    failures = await for_each_engine(
        {"a": refuse(), "b": take_longer()}, timeout_seconds=FAR_AWAY_SECONDS, lag_seconds=lambda took: 0.0
    )
    assert failures.keys() == {"a"}


async def test_an_engine_alone_and_the_first_of_several_have_the_whole_deadline() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await for_each_engine(
                {"a": never(), "b": never()},
                timeout_seconds=FAR_AWAY_SECONDS,
                lag_seconds=lambda took: 0.0,
            )


async def test_what_is_done_before_another_engine_is_called_counts_too() -> None:
    async def at_once() -> None:
        return

    async with asyncio.timeout(FAR_AWAY_SECONDS / 5):
        failures = await for_each_engine(
            {"a": at_once(), "b": never()},
            timeout_seconds=FAR_AWAY_SECONDS,
            lag_seconds=lambda took: 0.1,
        )
    seconds = float(str(failures["b"]).removeprefix("not done within ").removesuffix(" s"))
    # from when all were called, so that a busy machine makes it longer
    assert 0.1 <= seconds < FAR_AWAY_SECONDS / 5
