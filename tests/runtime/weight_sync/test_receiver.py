"""What becomes of an update that nobody finishes, with every backend."""

import pytest
from receiver_harness import MakeSender, OneEngineSender, Receiver, prepared, some_weights, sync

from grpo_runtime.weight_sync.interface import WeightSyncError


async def sender_with_open_update(backend: str, make_sender: MakeSender) -> OneEngineSender:
    """It has delivered `some_weights(1)` and does not finish the update by itself."""
    sender = make_sender()
    await sender.init()
    await sender.start()
    await sender.update(prepared(backend, 1))
    return sender


async def test_an_aborted_update_leaves_the_old_weights(
    backend: str, receiver: Receiver, make_sender: MakeSender
) -> None:
    sender = await sender_with_open_update(backend, make_sender)

    await sender.abort()

    with pytest.raises(WeightSyncError, match="nothing to finish"):
        await sender.finish("1.0")
    with pytest.raises(WeightSyncError, match="nothing to finish"):
        receiver.end.take()
    assert receiver.serves(some_weights(0))
    await sync(sender, prepared(backend, 2), version="1.1")
    assert receiver.serves(some_weights(2))


async def test_an_update_that_an_earlier_sender_left_open_is_ended_by_the_next(
    backend: str, receiver: Receiver, make_sender: MakeSender
) -> None:
    await sender_with_open_update(backend, make_sender)

    second = make_sender()
    await second.init()
    await sync(second, prepared(backend, 2), version="2.0")
    assert receiver.serves(some_weights(2))


async def test_nothing_is_finished_that_was_delivered_before_the_update_began(
    backend: str, receiver: Receiver, make_sender: MakeSender
) -> None:
    """Not by the sender of an earlier connection, nor of one that is finished already."""
    await sender_with_open_update(backend, make_sender)
    second = make_sender()
    await second.init()
    with pytest.raises(WeightSyncError, match="nothing to finish"):
        await second.finish("2.0")

    await second.abort()
    await sync(second, prepared(backend, 2), version="2.0")
    with pytest.raises(WeightSyncError, match="nothing to finish"):
        receiver.end.take()
    await second.start()
    with pytest.raises(WeightSyncError, match="nothing to finish"):
        await second.finish("2.1")
    assert (receiver.serves(some_weights(2)), receiver.version) == (True, "2.0")

    await second.update(prepared(backend, 3))
    receiver.end.start()
    with pytest.raises(WeightSyncError, match="nothing to finish"):
        receiver.end.take()
