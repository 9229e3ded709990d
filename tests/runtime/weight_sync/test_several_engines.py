"""One sender for several engines, with every backend."""

import asyncio

import pytest
from backends import BACKENDS
from receiver_harness import Receiver, make_group_sender, prepared, some_weights
from skipping_clock import SkippingClock

from grpo_runtime.weight_sync.interface import ControlChannel, Reach, WeightSender, WeightSyncError
from grpo_runtime.weight_sync.tag import TAG_BYTES

SECONDS = 40.0


async def sync(sender: WeightSender[object], weights: object, *, engines: set[str], version: str) -> set[str]:
    """A whole sync of the engines; returns those that failed. They are left out of what follows."""
    started = engines - (await sender.start(engines)).keys()
    updated = started - (await sender.update(weights, engines=started)).keys()
    return engines - (updated - (await sender.finish(version, engines=updated)).keys())


async def test_all_engines_of_a_sender_get_the_weights_of_every_sync(backend: str) -> None:
    receivers = {name: Receiver(backend) for name in "abc"}
    sender = make_group_sender(backend, receivers, timeout_seconds=SECONDS)
    assert await sender.init(receivers) == {}
    for step in (1, 2):
        failed = await sync(sender, prepared(backend, step), engines=set(receivers), version=f"1.{step}")
        assert failed == set()
        for receiver in receivers.values():
            assert receiver.serves(some_weights(step))
            assert receiver.version == f"1.{step}"
    await sender.shutdown()


async def test_what_is_sent_counts_once_for_each_group_or_connection_or_version(backend: str) -> None:
    """Two engines share a sender, and a third one joins alone."""
    receivers = {name: Receiver(backend) for name in "abc"}
    weights = prepared(backend, 1)
    for names in ("ab", "c"):
        sender = make_group_sender(
            backend, {name: receivers[name] for name in names}, timeout_seconds=SECONDS
        )
        assert await sender.init(names) == {}
        assert await sync(sender, weights, engines=set(names), version="1.1") == set()
        await sender.shutdown()
    kind = BACKENDS[backend]
    num_sent = 0 if kind.reach is Reach.PROCESS else 2 if kind.is_collective else 3
    if kind.for_run is not None:
        # all read what was written once
        num_sent = 1
    assert weights.num_bytes_sent == num_sent * (weights.num_bytes + TAG_BYTES)


@pytest.mark.parametrize("verb", ["init", "start", "update", "finish"])
async def test_an_engine_that_refuses_is_named_and_the_others_go_on(backend: str, verb: str) -> None:
    good, bad = Receiver(backend), Receiver(backend)

    async def refuse(*_: object) -> None:
        raise WeightSyncError("no such thing here")

    setattr(bad, verb, refuse)
    channels: dict[str, ControlChannel] = {"good": good, "bad": bad}
    # the good one meets nobody for a quarter of it
    sender = make_group_sender(backend, channels, timeout_seconds=10.0 if verb == "init" else SECONDS)
    failed = await sender.init(channels)
    assert failed.keys() == ({"bad"} if verb == "init" else set())
    outcome = await sync(sender, prepared(backend, 1), engines=channels.keys() - failed.keys(), version="1.1")
    assert outcome | failed.keys() == {"bad"}
    assert (good.serves(some_weights(1)), bad.serves(some_weights(0))) == (True, True)
    await sender.shutdown()


async def test_an_engine_that_never_answers_is_given_up_at_the_deadline_and_the_others_are_not(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, stuck = Receiver(backend), Receiver(backend)
    finish, has_finished, clock = good.finish, asyncio.Event(), SkippingClock(monkeypatch)

    async def tell(version: str) -> None:
        await finish(version)
        has_finished.set()

    async def never(version: str) -> None:
        # the other one, which has the same deadline, is done
        await has_finished.wait()
        clock.skip(SECONDS)
        await asyncio.Event().wait()

    channels: dict[str, ControlChannel] = {"good": good, "stuck": stuck}
    sender = make_group_sender(backend, channels, timeout_seconds=SECONDS)
    assert await sender.init(channels) == {}
    good.finish, stuck.finish = tell, never  # type: ignore[method-assign]
    assert await sync(sender, prepared(backend, 1), engines=set(channels), version="1.1") == {"stuck"}
    assert good.serves(some_weights(1))
    await sender.shutdown()


async def test_engines_that_are_not_named_are_left_alone(backend: str) -> None:
    receivers = {name: Receiver(backend) for name in "ab"}
    sender = make_group_sender(backend, receivers, timeout_seconds=SECONDS)
    assert await sender.init({"a"}) == {}
    assert await sync(sender, prepared(backend, 1), engines={"a"}, version="1.1") == set()
    assert (receivers["a"].version, receivers["b"].version) == ("1.1", "initial")
    await sender.shutdown()
