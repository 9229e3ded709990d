"""Weights on a GPU that are sent from the host: here of a stand-in on the CPU; `test_gpu.py` has a GPU."""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from backends import FROM_A_GPU, GPU_OF_TRAINER
from hypothesis import given
from hypothesis import strategies as st
from receiver_harness import MakeSender, Receiver, some_weights, sync
from stand_in_nccl import StandInDevice
from weight_sources import FixedWeights

from grpo_runtime.weight_sync.source import TensorSpec
from grpo_runtime.weight_sync.stream import packing
from grpo_runtime.weight_sync.stream.host_copy import HostCopy, host_copy
from grpo_runtime.weight_sync.stream.manifest import BUFFERS_IN_FLIGHT, unpack
from grpo_runtime.weight_sync.stream.memory import MemoryPool, StreamMemory, private_memory
from grpo_runtime.weight_sync.tag import POLY1305, TAG_BYTES, make_digest

SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=8)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8])


@dataclass
class LateCopy:
    """A copy that the GPU makes no sooner than somebody waits for it."""

    copy: Callable[[], object]

    def synchronize(self) -> None:
        self.copy()


class LateDevice(StandInDevice):
    """A GPU whose copies to the host are late. `num_buffers` is the most of its buffers at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.num_buffers = 0
        self._buffers: list[weakref.ref[torch.Tensor]] = []

    def empty(self, num_bytes: int) -> torch.Tensor:
        buffer = super().empty(num_bytes)
        self._buffers.append(weakref.ref(buffer))
        self.num_buffers = max(self.num_buffers, sum(known() is not None for known in self._buffers))
        return buffer

    def copy_to_host(self, target: torch.Tensor, source: torch.Tensor) -> LateCopy:
        self.require_use()
        return LateCopy(lambda: target.copy_(source))


class OnTheGpu(FixedWeights):
    """Weights that are given to who has chosen the trainer's GPU, and to nobody else."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in super().tensors():
            GPU_OF_TRAINER.require_use()
            yield name, tensor


def stream_of(copy: HostCopy) -> torch.Tensor:
    return torch.cat([buffer.clone() for buffer in copy.buffers()])


@given(shapes=SHAPES, dtype=DTYPES, num_words=st.integers(1, 20))
def test_stream_and_tag_are_those_of_a_copy_that_the_cpu_packs(
    shapes: list[list[int]], dtype: torch.dtype, num_words: int
) -> None:
    weights = [(f"w{i}", (torch.rand(shape) * 100).to(dtype)) for i, shape in enumerate(shapes)]
    device = LateDevice()
    copy = host_copy(FixedWeights(weights), device, buffer_bytes=16 * num_words)
    by_cpu = host_copy(FixedWeights(weights), None, buffer_bytes=16 * num_words)
    assert copy.manifest == by_cpu.manifest
    assert copy.tag_algorithm == by_cpu.tag_algorithm == POLY1305
    assert torch.equal(stream_of(copy)[:-TAG_BYTES], stream_of(by_cpu)[:-TAG_BYTES])
    digest = make_digest(POLY1305, copy.key, copy.manifest.tensors)
    digest.update(stream_of(by_cpu)[:-TAG_BYTES])
    assert digest.tag() == copy.tag
    assert not any(device.holds(buffer) for buffer in copy.buffers())


def test_a_tensor_is_cast_on_its_way_as_torch_casts_it() -> None:
    class Bfloat16(FixedWeights):
        """float32 tensors that travel as bfloat16."""

        def layout(self) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec(spec.name, spec.shape, torch.bfloat16) for spec in super().layout())

    weight = torch.randn(301, 203).t()
    copy = host_copy(Bfloat16([("w", weight)]), LateDevice(), buffer_bytes=4096)
    assert torch.equal(dict(unpack(stream_of(copy), copy.manifest))["w"], weight.to(torch.bfloat16))


def test_the_gpu_gives_two_buffers_and_packing_waits_for_no_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LONGEST_WAIT_SECONDS", 3600.0)
    device = LateDevice()
    copy = host_copy(FixedWeights([("w", torch.arange(1000.0))]), device, buffer_bytes=400)
    copy.wait_until_read()
    assert device.num_buffers == BUFFERS_IN_FLIGHT
    assert torch.equal(stream_of(copy)[:4000].view(torch.float32), torch.arange(1000.0))


def test_the_memory_is_that_which_the_gpu_copies_to_by_itself_and_is_used_again() -> None:
    device = StandInDevice()
    made: list[int] = []

    def locked(num_bytes: int) -> StreamMemory:
        memory = private_memory(num_bytes)
        made.append(memory.stream.data_ptr())
        return memory

    device.host_pool = MemoryPool(locked)
    for _ in range(3):
        copy = host_copy(FixedWeights([("w", torch.ones(2**10))]), device)
        copy.wait_until_read()
        assert [buffer.data_ptr() for buffer in copy.buffers()] == made
        del copy
    assert len(made) == 1


def test_buffers_in_which_tensors_are_not_aligned_are_refused() -> None:
    copy = host_copy(FixedWeights([("w", torch.ones(8))]), StandInDevice(), buffer_bytes=24)
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        copy.wait_until_read()


@pytest.mark.parametrize("backend", sorted(FROM_A_GPU))
async def test_engines_get_the_weights_of_a_trainer_on_a_gpu(
    receiver: Receiver, make_sender: MakeSender, backend: str
) -> None:
    sender = make_sender()
    await sender.init()
    for seed in (1, 2):
        copy = FROM_A_GPU[backend].prepare(OnTheGpu(some_weights(seed).items()))
        await sync(sender, copy, version=f"1.{seed}")
        assert receiver.serves(some_weights(seed))
        assert receiver.version == f"1.{seed}"
