"""Engines without the memory to stage weights: what they have after a transfer, and when they end."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch
from receiver_harness import (
    MakeSender,
    OneEngineSender,
    Receiver,
    accident,
    flip_a_bit,
    packed,
    some_weights,
    sync,
)
from weight_sources import FixedWeights

from grpo_runtime.process.free_memory import free_memory
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.manifest import (
    BUFFERS_IN_FLIGHT,
    alternating_buffers,
    complete_tensors,
    unpack,
)


@pytest.fixture(params=["gloo", "file"])
def backend(request: pytest.FixtureRequest) -> str:
    """Those that need memory for what they receive."""
    return str(request.param)


@pytest.fixture
def receiver(backend: str) -> Receiver:
    return Receiver(backend, has_room=False)


@pytest.fixture
async def sender(make_sender: MakeSender) -> AsyncIterator[OneEngineSender]:
    sender = make_sender(timeout_seconds=40.0)
    await sender.init()
    yield sender


NUM_BYTES = packed(0).manifest.num_bytes


@pytest.mark.parametrize("buffer_bytes", [16, 48, 4096, NUM_BYTES, NUM_BYTES + 8, NUM_BYTES // 2 + 4, 2**20])
async def test_sync_after_sync_reaches_the_model_to_the_last_bit(
    receiver: Receiver, sender: OneEngineSender, buffer_bytes: int
) -> None:
    """Also where a tensor, or the tag, is in several buffers."""
    for seed in (1, 2):
        await sync(sender, packed(seed, buffer_bytes=buffer_bytes), version=f"1.{seed}")
        assert receiver.serves(some_weights(seed))
        assert receiver.version == f"1.{seed}"
    assert not receiver.has_ended


async def test_the_model_has_the_weights_before_the_update_is_finished(
    receiver: Receiver, sender: OneEngineSender
) -> None:
    await sender.start()
    await sender.update(packed(1))
    assert receiver.serves(some_weights(1))
    assert receiver.version == "initial"


@pytest.mark.parametrize("verb", ["abort", "start", "init"])
async def test_an_engine_ends_when_weights_that_its_model_has_are_given_up(
    receiver: Receiver, sender: OneEngineSender, make_sender: MakeSender, verb: str
) -> None:
    await sender.start()
    await sender.update(packed(1))
    other = make_sender(timeout_seconds=40.0)
    with pytest.raises(WeightSyncError):
        await (sender.abort() if verb == "abort" else other.init())
        await other.start()
    assert receiver.has_ended


async def test_an_engine_ends_when_the_bytes_are_not_those_that_were_sent(
    receiver: Receiver, sender: OneEngineSender
) -> None:
    await sender.start()
    with pytest.raises(WeightSyncError, match="not the bytes announced"):
        await sender.update(packed(1, alter=flip_a_bit))
    assert receiver.has_ended


@pytest.mark.parametrize("backend", ["gloo"], indirect=True)
async def test_an_engine_ends_when_a_transfer_into_its_model_breaks_off(
    receiver: Receiver, make_sender: MakeSender
) -> None:
    def fail() -> None:
        raise WeightSyncError("the trainer has an accident")

    sender = make_sender(timeout_seconds=4.0)
    await sender.init()
    await sender.start()
    # by then the first tensor is there
    weights = packed(1, alter=accident(fail, before=30), buffer_bytes=512)
    with pytest.raises(WeightSyncError):
        await sender.update(weights)
    await receiver.call("shutdown")  # after the update, which may still wait for the trainer
    assert receiver.has_ended


async def test_an_update_that_is_refused_leaves_the_old_weights_and_the_engine(
    receiver: Receiver, sender: OneEngineSender
) -> None:
    other_model = HostCopy(FixedWeights([("other", torch.zeros(3))]))
    await sender.start()
    with pytest.raises(WeightSyncError, match="refused"):
        await sender.update(other_model)
    assert receiver.serves(some_weights(0))
    assert not receiver.has_ended


async def test_the_trainers_copy_on_this_machine_needs_no_room() -> None:
    receiver = Receiver("shared_memory", has_room=False)
    sender = OneEngineSender("shared_memory", receiver, timeout_seconds=40.0)
    await sender.init()
    await sender.start()
    await sender.update(packed(1))
    assert receiver.serves(some_weights(0))
    await sender.finish("1.1")
    assert receiver.serves(some_weights(1))
    await sender.shutdown()
    await receiver.shutdown()


@pytest.mark.parametrize("buffer_bytes", [16, 112, 4096, 2**20])
def test_tensors_come_out_of_two_buffers_as_out_of_the_whole_stream(buffer_bytes: int) -> None:
    weights = packed(3, buffer_bytes=buffer_bytes)
    weights.wait_until_read()
    stream, manifest = weights.memory.stream, weights.manifest
    memory = torch.empty(BUFFERS_IN_FLIGHT * buffer_bytes, dtype=torch.uint8)

    def arriving() -> Iterator[torch.Tensor]:
        for place, sent in zip(
            alternating_buffers(memory, manifest), stream.split(buffer_bytes), strict=True
        ):
            memory.fill_(255)
            place.copy_(sent)
            yield place

    found = dict(complete_tensors(arriving(), manifest))
    for name, tensor in unpack(stream, manifest):
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].nan_to_num(7), tensor.nan_to_num(7))


MEMINFO = "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    500 kB\n"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 500 * 1024),
        ({"memory.max": "max", "memory.current": "7"}, 500 * 1024),
        ({"memory.max": "100000", "memory.current": "90000"}, 10000 + 3000),
        ({"memory.max": "100", "memory.current": "90000"}, 0),
        ({"memory.max": "900000", "memory.current": "90000"}, 500 * 1024),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, 500 * 1024),
        ({"memory/memory.limit_in_bytes": "5000", "memory/memory.usage_in_bytes": "4000"}, 1000 + 2000),
    ],
)
def test_free_memory_is_what_the_container_or_the_machine_has_left(
    tmp_path: Path, files: dict[str, str], wanted: int
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 3000\n")
    (tmp_path / "memory/memory.stat").write_text("inactive_file 1\ntotal_inactive_file 2000\n")
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    assert free_memory(cgroups=tmp_path, meminfo=tmp_path / "meminfo") == wanted
