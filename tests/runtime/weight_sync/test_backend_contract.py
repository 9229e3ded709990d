"""What every backend must keep, shown on a receiver without vLLM.

Backends whose ends are apart must also outlive each other's end; within one process there is nobody to lose.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import receiver_harness
import torch
from backends import BACKENDS
from receiver_harness import (
    MakeSender,
    OneEngineSender,
    Receiver,
    accident,
    flip_a_bit,
    packed,
    prepare,
    prepared,
    some_weights,
    stall,
    sync,
)
from weight_sources import FixedWeights

from grpo_runtime.weight_sync.interface import Reach, WeightSyncError
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.memory import MEMORY_TO_SHARE

GIVE_UP_SECONDS = 30.0

ends_are_apart = pytest.mark.parametrize(
    "backend", sorted(name for name in BACKENDS if BACKENDS[name].reach != Reach.PROCESS), indirect=True
)


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
        await sender.update(packed(1, alter=flip_a_bit))
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
    change: Callable[[dict[str, torch.Tensor]], object],
    sentence: str,
    backend: str,
    make_sender: MakeSender,
    receiver: Receiver,
) -> None:
    weights = some_weights(1)
    change(weights)
    sender = make_sender()
    await sender.init()
    await sender.start()
    with pytest.raises(WeightSyncError, match=sentence):
        await sender.update(prepare(backend, weights))
    assert receiver.serves(some_weights(0))


async def test_only_an_optional_tensor_may_be_left_out(backend: str) -> None:
    weights = some_weights(1)
    del weights["scalar"]
    receiver = Receiver(backend, optional=frozenset({"scalar"}))
    sender = OneEngineSender(backend, receiver, timeout_seconds=GIVE_UP_SECONDS)
    await sender.init()
    await sync(sender, prepare(backend, weights), version="1.0")
    assert receiver.serves(weights)
    await sender.shutdown()
    await receiver.shutdown()


@ends_are_apart
async def test_a_stalled_sender_is_given_up_at_the_deadline(
    backend: str, receiver: Receiver, make_sender: MakeSender
) -> None:
    sender, until = make_sender(timeout_seconds=4.0), threading.Event()
    await sender.init()
    await sender.start()
    try:
        # nobody but the deadline ends this: the sender hangs for as long as we wait
        with pytest.raises(WeightSyncError):
            await sender.update(packed(1, alter=accident(stall(until))))
    finally:
        until.set()
    assert receiver.serves(some_weights(0))

    successor = make_sender()
    await successor.init()
    await sync(successor, prepared(backend, 2), version="2.0")
    assert receiver.serves(some_weights(2))


@ends_are_apart
async def test_a_receiver_that_does_not_receive_is_given_up_at_the_deadline(
    receiver: Receiver, make_sender: MakeSender
) -> None:
    sender = make_sender(timeout_seconds=4.0)
    await sender.init()
    await sender.start()

    async def never(info: object) -> None:
        await asyncio.Event().wait()

    receiver.update = never  # type: ignore[method-assign, assignment]
    # more than fits into the kernel's socket buffers
    large = FixedWeights([("large", torch.zeros(64 * 2**20, dtype=torch.uint8))])
    weights = HostCopy(large, pool=MEMORY_TO_SHARE)
    async with asyncio.timeout(GIVE_UP_SECONDS):
        with pytest.raises(WeightSyncError):
            await sender.update(weights)


async def test_the_error_of_a_receiver_that_refuses_to_meet_arrives_before_the_meeting_times_out(
    receiver: Receiver, make_sender: MakeSender
) -> None:
    async def refuse(info: object) -> None:
        raise WeightSyncError("no such thing here")

    receiver.init = refuse  # type: ignore[method-assign, assignment]
    # a sender that waited for the meeting first would only know that nobody came
    with pytest.raises(WeightSyncError, match="no such thing here"):
        await make_sender().init()


@ends_are_apart
async def test_after_a_killed_sender_the_next_one_syncs(
    backend: str, receiver: Receiver, make_sender: MakeSender
) -> None:
    script = Path(receiver_harness.__file__)
    child = await asyncio.create_subprocess_exec(
        sys.executable, script, backend, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdin and child.stdout
    failure, verbs = "", []
    while line := await asyncio.wait_for(child.stdout.readline(), 60):
        verb, *arguments = json.loads(line)
        verbs.append(verb)
        try:
            await getattr(receiver, verb)(*arguments)
        except WeightSyncError as error:
            failure = str(error)
        child.stdin.write(json.dumps(failure).encode() + b"\n")
    assert await child.wait() == -9
    # a receiver that knew of the transfer says that it broke
    assert failure or verbs == ["init", "start"]
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
    await sender.update(prepare(backend, weights))
    taken = dict(receiver.end.take())
    assert {name: tensor.data_ptr() for name, tensor in taken.items()} == {
        name: tensor.data_ptr() for name, tensor in weights.items()
    }
