"""What every backend must keep, shown on a receiver without vLLM.

Backends whose ends are apart must also outlive each other's end; within one process there is nobody to lose.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import receiver_harness
from receiver_harness import Receiver, packed, some_weights, stall, with_accident

from grpo_runtime.weight_sync.interface import WeightSender, WeightSyncError
from grpo_runtime.weight_sync.packing import pack
from grpo_runtime.weight_sync.registry import BACKENDS, Reach, SenderSettings

MakeSender = Callable[..., WeightSender[Any]]


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


ends_are_apart = pytest.mark.parametrize(
    "backend", sorted(name for name in BACKENDS if BACKENDS[name].reach != Reach.PROCESS), indirect=True
)


@pytest.fixture
def receiver(backend: str) -> Receiver:
    return Receiver(backend)


@pytest.fixture
async def make_sender(backend: str, receiver: Receiver) -> AsyncIterator[MakeSender]:
    senders: list[WeightSender[Any]] = []

    def make(*, timeout_seconds: float = 5.0) -> WeightSender[Any]:
        settings = SenderSettings(peer_host="127.0.0.1", timeout_seconds=timeout_seconds)
        senders.append(BACKENDS[backend].make_sender(receiver, settings))
        return senders[-1]

    yield make
    for sender in senders:
        await sender.shutdown()
    await receiver.shutdown()


def prepared(backend: str, seed: int) -> Any:
    """`some_weights` as senders of the backend take them."""
    return BACKENDS[backend].prepare(lambda: some_weights(seed).items())


async def sync(sender: WeightSender[Any], weights: Any, *, version: str) -> None:
    """All of a sync after init."""
    await sender.start()
    await sender.update(weights)
    await sender.finish(version)


async def test_weights_arrive_bit_for_bit_and_under_their_version(
    backend: str, receiver: Receiver, make_sender: MakeSender
) -> None:
    sender = make_sender()
    await sender.init()

    await sync(sender, prepared(backend, 1), version="1.0")

    assert receiver.serves(some_weights(1))
    assert receiver.version == "1.0"


async def test_one_connection_carries_sync_after_sync(
    backend: str, receiver: Receiver, make_sender: MakeSender
) -> None:
    sender = make_sender()
    await sender.init()
    for step in range(3):
        await sync(sender, prepared(backend, step), version=f"1.{step}")
        assert receiver.serves(some_weights(step))
        assert receiver.version == f"1.{step}"


async def test_nothing_is_served_before_finish(
    backend: str, receiver: Receiver, make_sender: MakeSender
) -> None:
    sender = make_sender()
    await sender.init()
    await sender.start()
    await sender.update(prepared(backend, 1))
    assert receiver.serves(some_weights(0))
    assert receiver.version == "initial"


@ends_are_apart
async def test_bytes_that_are_not_the_announced_ones_are_refused(
    receiver: Receiver, make_sender: MakeSender
) -> None:
    sender = make_sender()
    await sender.init()
    await sender.start()

    with pytest.raises(WeightSyncError, match="not the bytes announced"):
        await sender.update(replace(packed(1), buffers=packed(2).buffers))
    with pytest.raises(WeightSyncError, match="nothing to finish"):
        await sender.finish("1.1")

    assert receiver.serves(some_weights(0))
    assert receiver.version == "initial"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda weights: weights.pop("scalar"), "scalar is missing"),
        (lambda weights: weights.update(more=weights["half"]), "has no more"),
        (lambda weights: weights.update(half=weights["half"].t()), r"half has shape \[3, 5\]"),
    ],
)
async def test_another_model_is_refused_before_a_byte_is_received(
    change: Callable[[dict[str, object]], None],
    sentence: str,
    backend: str,
    make_sender: MakeSender,
    receiver: Receiver,
) -> None:
    weights = some_weights(1)
    change(weights)  # type: ignore[arg-type]
    sender = make_sender()
    await sender.init()
    await sender.start()
    with pytest.raises(WeightSyncError, match=sentence):
        await sender.update(BACKENDS[backend].prepare(weights.items))
    assert receiver.serves(some_weights(0))


async def test_an_aborted_update_leaves_the_old_weights(
    backend: str, receiver: Receiver, make_sender: MakeSender
) -> None:
    sender = make_sender()
    await sender.init()
    await sender.start()
    await sender.update(prepared(backend, 1))

    await sender.abort()

    with pytest.raises(WeightSyncError, match="nothing to finish"):
        await sender.finish("1.0")
    assert receiver.serves(some_weights(0))
    await sync(sender, prepared(backend, 2), version="1.1")
    assert receiver.serves(some_weights(2))


@ends_are_apart
async def test_a_stalled_sender_is_given_up_at_the_deadline(
    backend: str, receiver: Receiver, make_sender: MakeSender
) -> None:
    sender, until = make_sender(timeout_seconds=1.0), threading.Event()
    await sender.init()
    await sender.start()
    started = time.monotonic()
    try:
        with pytest.raises(WeightSyncError):
            await sender.update(with_accident(packed(1), stall(until)))
    finally:
        until.set()
    assert time.monotonic() - started < 3.0
    assert receiver.serves(some_weights(0))

    successor = make_sender()
    await successor.init()
    await sync(successor, prepared(backend, 2), version="2.0")
    assert receiver.serves(some_weights(2))


@ends_are_apart
async def test_a_receiver_that_does_not_receive_is_given_up_at_the_deadline(
    receiver: Receiver, make_sender: MakeSender
) -> None:
    sender = make_sender(timeout_seconds=1.0)
    await sender.init()
    await sender.start()
    answered = asyncio.Event()

    async def never(info: object) -> None:
        await answered.wait()

    receiver.update = never  # type: ignore[method-assign, assignment]
    started = time.monotonic()
    # more than fits into the kernel's socket buffers
    weights = pack([("large", receiver_harness.torch.zeros(64 * 2**20, dtype=receiver_harness.torch.uint8))])
    with pytest.raises(WeightSyncError):
        await sender.update(weights)
    assert time.monotonic() - started < 3.0


async def test_a_receiver_that_cannot_be_met_is_given_up_at_the_deadline(
    receiver: Receiver, make_sender: MakeSender
) -> None:
    async def refuse(info: object) -> None:
        raise WeightSyncError("no such thing here")

    receiver.init = refuse  # type: ignore[method-assign, assignment]
    started = time.monotonic()
    with pytest.raises(WeightSyncError, match="no such thing here"):
        await make_sender(timeout_seconds=2.0).init()
    assert time.monotonic() - started < 1.5


@ends_are_apart
async def test_after_a_killed_sender_the_next_one_syncs(
    backend: str, receiver: Receiver, make_sender: MakeSender
) -> None:
    script = Path(receiver_harness.__file__)
    child = await asyncio.create_subprocess_exec(
        sys.executable, script, backend, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdin and child.stdout
    failure = ""
    while line := await asyncio.wait_for(child.stdout.readline(), 60):
        verb, *arguments = json.loads(line)
        try:
            await getattr(receiver, verb)(*arguments)
        except WeightSyncError as error:
            failure = str(error)
        child.stdin.write(json.dumps(failure).encode() + b"\n")
    assert await child.wait() == -9
    assert failure
    assert receiver.serves(some_weights(0))

    sender = make_sender()
    await sender.init()
    await sync(sender, prepared(backend, 2), version="2.0")
    assert receiver.serves(some_weights(2))
    assert receiver.version == "2.0"


@pytest.mark.parametrize(
    "backend", sorted(name for name in BACKENDS if BACKENDS[name].reach == Reach.PROCESS), indirect=True
)
async def test_within_a_process_the_engine_reads_the_tensors_of_the_trainer_itself(
    backend: str, receiver: Receiver, make_sender: MakeSender
) -> None:
    weights, sender = some_weights(1), make_sender()
    await sender.init()
    await sender.start()
    await sender.update(BACKENDS[backend].prepare(weights.items))
    taken = dict(receiver.end.take())
    assert {name: tensor.data_ptr() for name, tensor in taken.items()} == {
        name: tensor.data_ptr() for name, tensor in weights.items()
    }
