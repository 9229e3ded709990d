"""Packing in buffers on a device, here a stand-in on the CPU; `test_gpu.py` does the same on a GPU."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stand_in_nccl import StandInDevice
from weight_sources import FixedWeights

from grpo_runtime.weight_sync.source import TensorSpec
from grpo_runtime.weight_sync.stream import packing
from grpo_runtime.weight_sync.stream.host_copy import HostCopy, device_copy
from grpo_runtime.weight_sync.stream.manifest import unpack
from grpo_runtime.weight_sync.tag import TAG_BYTES, make_digest

SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=8)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8])


@pytest.fixture(autouse=True)
def nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LONGEST_WAIT_SECONDS", 0.0)


def stream_of(copy: HostCopy) -> torch.Tensor:
    return torch.cat([buffer.clone() for buffer in copy.buffers()])


@given(shapes=SHAPES, dtype=DTYPES, num_words=st.integers(1, 20))
def test_the_stream_is_the_one_that_the_cpu_packs(
    shapes: list[list[int]], dtype: torch.dtype, num_words: int
) -> None:
    weights = [(f"w{i}", (torch.rand(shape) * 100).to(dtype)) for i, shape in enumerate(shapes)]
    copy = device_copy(FixedWeights(weights), StandInDevice(), buffer_bytes=16 * num_words)
    by_cpu = HostCopy(FixedWeights(weights), buffer_bytes=16 * num_words)
    assert copy.manifest == by_cpu.manifest
    assert torch.equal(stream_of(copy)[:-TAG_BYTES], stream_of(by_cpu)[:-TAG_BYTES])
    # and once more, from the host copy
    copy.wait_until_read()
    assert torch.equal(stream_of(copy)[:-TAG_BYTES], stream_of(by_cpu)[:-TAG_BYTES])
    digest = make_digest(copy.tag_algorithm, copy.key, copy.manifest.tensors)
    digest.update(stream_of(copy)[:-TAG_BYTES])
    assert digest.tag() == bytes(stream_of(copy)[-TAG_BYTES:].numpy())


def test_a_tensor_is_cast_on_its_way_as_torch_casts_it() -> None:
    class Bfloat16(FixedWeights):
        """float32 tensors that travel as bfloat16."""

        def layout(self) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec(spec.name, spec.shape, torch.bfloat16) for spec in super().layout())

    weight = torch.randn(301, 203).t()
    copy = device_copy(Bfloat16([("w", weight)]), StandInDevice(), buffer_bytes=4096)
    assert torch.equal(dict(unpack(stream_of(copy), copy.manifest))["w"], weight.to(torch.bfloat16))


def test_a_sender_that_keeps_up_sends_from_the_device_and_a_later_one_from_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "LONGEST_WAIT_SECONDS", 60.0)
    device = StandInDevice()
    copy = device_copy(FixedWeights([("w", torch.arange(1000.0))]), device, buffer_bytes=400)
    # 4000 bytes, the last buffer has the tag alone
    assert [device.holds(buffer) for buffer in copy.buffers()] == [True] * 10 + [False]
    assert [device.holds(buffer) for buffer in copy.buffers()][:9] == [False] * 9


def test_a_buffer_that_is_wanted_stays_on_the_device_until_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "LONGEST_WAIT_SECONDS", 60.0)
    device = StandInDevice()
    copy = device_copy(FixedWeights([("w", torch.arange(1000.0))]), device, buffer_bytes=400)
    take = packing.DevicePacking.packed

    def take_late(packing: packing.DevicePacking, end: int) -> torch.Tensor | None:
        if end == 3200:  # after which nothing is waited for any more
            copy.wait_until_read()
        return take(packing, end)

    monkeypatch.setattr(packing.DevicePacking, "packed", take_late)
    assert [device.holds(buffer) for buffer in copy.buffers()] == [True] * 10 + [False]


def test_packing_does_not_wait_long_for_a_sender_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LONGEST_WAIT_SECONDS", 0.05)
    device = StandInDevice()
    copy = device_copy(FixedWeights([("w", torch.arange(1000.0))]), device, buffer_bytes=400)
    sending = copy.buffers()
    first = next(sending)
    copy.wait_until_read()  # would wait for the sender forever
    assert torch.equal(first.view(torch.float32), torch.arange(100.0))
    assert torch.equal(torch.cat([first, *sending])[:4000].view(torch.float32), torch.arange(1000.0))


def test_buffers_in_which_tensors_are_not_aligned_are_refused() -> None:
    copy = device_copy(FixedWeights([("w", torch.ones(8))]), StandInDevice(), buffer_bytes=24)
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        copy.wait_until_read()


def test_the_source_is_read_on_the_device_of_the_rank() -> None:
    """A collective operation of a sharded policy would run on the first GPU of the pod otherwise."""
    device = StandInDevice()

    class Gathered(FixedWeights):
        def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in super().tensors():
                device.require_use()
                yield name, tensor

    assert device_copy(Gathered([("w", torch.ones(8))]), device).wait_until_read() >= 0
