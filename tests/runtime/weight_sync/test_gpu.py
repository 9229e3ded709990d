"""What stand-ins cannot show: packing, the tag, NCCL and CUDA IPC on a GPU. One GPU is enough.

NCCL between GPUs is tested where there are seven; `bench/gpu/two_gpus.py` runs it on a machine that has two.
"""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import test_losses
import torch
from backends import NCCL_OF_VLLM
from nccl_member import GIVEN_UP
from receiver_harness import CallChannel, make_group_sender
from test_several_engines import sync
from weight_sources import FixedWeights
from worker_processes import digest_of, engines_of_processes

from grpo_runtime.weight_sync.group import GroupMember, host_store
from grpo_runtime.weight_sync.interface import GroupBrokenError
from grpo_runtime.weight_sync.nccl import NcclGroup, TorchNccl
from grpo_runtime.weight_sync.registry import IPC
from grpo_runtime.weight_sync.source import TensorSpec
from grpo_runtime.weight_sync.stream.host_copy import HostCopy, device_copy, host_copy
from grpo_runtime.weight_sync.stream.manifest import unpack
from grpo_runtime.weight_sync.stream.memory import CudaDevice, device_of_rank, map_memory, registered_memory
from grpo_runtime.weight_sync.tag import NUM_COLUMNS, ROW_BYTES, TAG_BYTES, RowDigest, hash_rows, make_digest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: make test-gpu"),
]

needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM, for its communicator")
KEY = bytes(range(32))
ADDRESS = "127.0.0.1"


class Bfloat16(FixedWeights):
    """Tensors that travel as bfloat16."""

    def layout(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(spec.name, spec.shape, torch.bfloat16) for spec in super().layout())


def some_bytes(num_bytes: int) -> torch.Tensor:
    return torch.randint(0, 256, (num_bytes,), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def stream_of(copy: HostCopy) -> torch.Tensor:
    return torch.cat([buffer.cpu() for buffer in copy.buffers()])


@pytest.mark.parametrize("num_rows", [1, 16, 17, 40, 1000])
def test_the_hashes_of_rows_are_those_of_the_cpu(num_rows: int) -> None:
    rows = some_bytes(num_rows * ROW_BYTES).view(torch.int8).view(-1, ROW_BYTES)
    coefficients = some_bytes(ROW_BYTES * NUM_COLUMNS).view(torch.int8).view(NUM_COLUMNS, -1).t()
    assert torch.equal(hash_rows(rows.cuda(), coefficients.cuda()).cpu(), hash_rows(rows, coefficients))


@pytest.mark.parametrize("sizes", [[1], [ROW_BYTES * 20], [5000, 3, 12_345], [64, 100_000]])
def test_the_tag_is_that_of_the_cpu_whatever_the_buffers(sizes: list[int]) -> None:
    data = some_bytes(300_001)
    on_gpu, on_cpu = RowDigest(KEY, ()), RowDigest(KEY, ())
    for part in torch.split(data.cuda(), [*sizes, len(data) - sum(sizes)]):
        on_gpu.update(part)
    on_cpu.update(data)
    assert on_gpu.tag() == on_cpu.tag()


def test_weights_are_packed_and_cast_as_the_cpu_does_it() -> None:
    weights = {
        "large": torch.randn(3000, 4111),
        "transposed": torch.randn(50, 40).t(),
        "scalar": torch.randn(()),
        "empty": torch.zeros(0, 7),
        "odd": torch.randn(5, 3),
    }
    on_gpu = [(name, tensor.cuda()) for name, tensor in weights.items()]
    copy = device_copy(Bfloat16(on_gpu), device_of_rank(), buffer_bytes=2**20)
    by_cpu = HostCopy(Bfloat16(weights.items()), buffer_bytes=2**20)
    # first from the GPU where it is still there, then from host memory alone
    for _ in range(2):
        assert torch.equal(stream_of(copy)[:-TAG_BYTES], stream_of(by_cpu)[:-TAG_BYTES])
        copy.wait_until_read()
    for name, tensor in unpack(stream_of(copy), copy.manifest):
        assert torch.equal(tensor, weights[name].to(torch.bfloat16))


def test_weights_for_the_host_are_packed_as_the_cpu_does_it_into_memory_that_another_process_maps() -> None:
    weights = {
        "large": torch.randn(3000, 4111),
        "transposed": torch.randn(50, 40).t(),
        "scalar": torch.randn(()),
    }
    on_gpu = Bfloat16([(name, tensor.cuda()) for name, tensor in weights.items()])
    device = device_of_rank()
    wanted = stream_of(host_copy(Bfloat16(weights.items()), None))[:-TAG_BYTES]
    for pool in (device.host_pool, device.pool_to_share):
        copy = host_copy(on_gpu, device, pool=pool)
        assert torch.equal(stream_of(copy)[:-TAG_BYTES], wanted)
        assert copy.memory.stream.is_pinned()
        digest = make_digest(copy.tag_algorithm, copy.key, copy.manifest.tensors)
        digest.update(wanted)
        assert digest.tag() == copy.tag
    file = copy.memory.file
    assert file is not None
    assert torch.equal(map_memory(file, num_bytes=len(copy.memory.stream)).stream[:-TAG_BYTES], wanted)


def test_a_sender_that_keeps_up_sends_from_the_gpu() -> None:
    device = device_of_rank()
    weights = FixedWeights([("w", torch.randn(2**20, device="cuda"))])
    copy = device_copy(weights, device, buffer_bytes=2**18)
    assert [device.holds(buffer) for buffer in copy.buffers()] == [True] * 16 + [False]


def test_packing_sees_what_training_has_put_on_its_stream() -> None:
    weight = torch.zeros(2**24, device="cuda")
    for _ in range(200):
        weight += 1
    copy = device_copy(FixedWeights([("w", weight)]), device_of_rank())
    assert torch.equal(stream_of(copy)[:-TAG_BYTES].view(torch.float32), torch.full((2**24,), 200.0))


def test_host_memory_is_locked_for_as_long_as_it_is_there() -> None:
    for _ in range(3):
        memory = registered_memory(2**24)
        assert memory.stream.is_pinned()
        memory.stream.copy_(some_bytes(2**24))
        assert torch.equal(memory.stream.cuda().cpu(), some_bytes(2**24))
        del memory


def nccl_group(member: GroupMember) -> NcclGroup:
    store = host_store(ADDRESS, timeout_seconds=member.meeting_seconds)
    return NcclGroup(
        store,
        member,
        own_address=ADDRESS,
        invite=lambda nccl_id: None,
        connect=TorchNccl,
        device=device_of_rank(),
    )


def test_nccl_with_one_rank_sends_what_is_on_the_gpu_and_on_the_host() -> None:
    for step in range(2):
        group = nccl_group(GroupMember(f"key-{step}", rank=0, size=1, meeting_seconds=60.0))
        data = some_bytes(1_000_001)
        assert torch.equal(group.broadcast(data.cuda(), timeout_seconds=60.0).wait().cpu(), data)
        for _ in range(3):
            assert torch.equal(group.broadcast(data, timeout_seconds=60.0).wait().cpu(), data)
        group.close()
        with pytest.raises(GroupBrokenError):
            group.broadcast(data.cuda(), timeout_seconds=60.0).wait()


def test_a_group_of_nccl_whose_other_member_does_not_come_is_given_up() -> None:
    with pytest.raises(GroupBrokenError):
        nccl_group(GroupMember("key", rank=0, size=2, meeting_seconds=2.0))


def test_a_member_that_is_killed_before_nccl_meets_takes_nobody_along() -> None:
    """In a process of its own, which torch's watchdog would end by SIGABRT."""
    script = Path(__file__).with_name("nccl_member.py")
    outcome = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.startswith(GIVEN_UP), outcome.stderr


@needs_vllm
async def test_an_engine_of_vllm_that_does_not_come_is_given_up_and_the_trainer_goes_on() -> None:
    class Absent(CallChannel):
        async def call(self, verb: str, *arguments: object) -> None:
            await asyncio.Event().wait()

    NCCL_OF_VLLM.prepare(FixedWeights([("w", torch.ones(4, device="cuda"))])).wait_until_read()
    sender = make_group_sender(NCCL_OF_VLLM.name, {"a": Absent()}, timeout_seconds=8.0)
    async with asyncio.timeout(60):
        failures = await sender.init("a")
    assert failures.keys() == {"a"}
    await sender.shutdown()
    assert torch.ones(8, device="cuda").sum().item() == 8


async def test_ipc_carries_weights_of_many_buffers_and_lets_go_of_the_memory() -> None:
    weights = {
        "large": torch.randn(100_000_000, device="cuda"),
        "half": torch.ones(7, device="cuda", dtype=torch.bfloat16),
    }
    # cuBLAS keeps memory of its own from the first tag on; what an earlier test left may go in between
    in_use = [await memory_after_a_connection(weights) for _ in range(2)]
    assert in_use[1] <= in_use[0]


async def memory_after_a_connection(weights: dict[str, torch.Tensor]) -> int:
    """Bytes of the GPU that torch has in use after two weight syncs to an engine that comes and goes."""
    # another test may have left one behind, in a call of NCCL that does not return
    threads_before = set(threading.enumerate())
    layout = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    async with engines_of_processes("ipc", "a", layout=layout) as engines:
        sender = make_group_sender("ipc", engines, timeout_seconds=60.0)
        assert await sender.init(engines) == {}
        for step in (1, 2):
            weights["large"] += 1
            copy = IPC.prepare(FixedWeights(weights.items()))
            assert await sync(sender, copy, engines={"a"}, version=f"1.{step}") == set()
            assert await engines["a"].served() == [[f"1.{step}", digest_of(weights)]]
            copy.wait_until_read()
            del copy
        await sender.shutdown()
        for thread in set(threading.enumerate()) - threads_before:
            if thread.name.startswith("weight-sender"):
                thread.join()
    gc.collect()
    torch.cuda.ipc_collect()
    return torch.cuda.memory_allocated()


LOSSES: list[tuple[Callable[..., object], dict[str, object]]] = [
    *[
        (
            test_losses.test_every_worker_of_every_engine_gets_sync_after_sync,
            {"names": names, "num_workers": 2},
        )
        for names in ("a", "abc")
    ],
    (
        test_losses.test_an_engine_that_joins_in_mid_step_gets_the_same_weights_and_then_shares_the_sender,
        {},
    ),
    *[
        (
            test_losses.test_an_engine_that_is_lost_in_a_phase_is_named_and_the_others_get_the_weights,
            {"phase": phase, "happens": happens},
        )
        for phase in ("init", "start", "update", "transfer", "finish")
        for happens in (test_losses.kill, test_losses.freeze)
    ],
    (test_losses.test_an_engine_that_was_hung_in_a_transfer_keeps_its_weights_and_comes_back, {}),
    (test_losses.test_a_sender_that_was_succeeded_changes_nothing, {}),
    (test_losses.test_a_repeated_finish_changes_nothing, {}),
    (test_losses.test_a_transfer_that_is_given_up_in_the_middle_leaves_the_old_weights, {}),
]


MOST_GPUS = 7
"""The trainer's, and one for each of two workers of three engines."""


needs_many = pytest.mark.skipif(
    torch.cuda.device_count() < MOST_GPUS,
    reason=f"needs {MOST_GPUS} NVIDIA GPUs, or null ones: make test-nullgpu",
)


@pytest.mark.parametrize(("test", "arguments"), LOSSES)
@pytest.mark.parametrize("backend", ["ipc", pytest.param("nccl", marks=needs_many)])
async def test_processes_keep_the_contract_of_all_backends(
    backend: str, test: Callable[..., object], arguments: dict[str, object]
) -> None:
    await test(backend, **arguments)  # type: ignore[misc] # a coroutine function


@needs_many
@needs_vllm
@pytest.mark.parametrize("num_workers", [1, 2])
async def test_communicators_of_vllm_get_sync_after_sync_also_when_one_engine_is_killed(
    num_workers: int,
) -> None:
    weights = {"large": torch.randn(3000, 4111, device="cuda"), "odd": torch.randn(7, device="cuda")}
    if num_workers == 2:
        # of several dtypes, which vLLM cannot pack
        weights["half"] = torch.randn(5, 3, device="cuda").to(torch.bfloat16)
    layout = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    name = NCCL_OF_VLLM.name
    async with engines_of_processes(name, "ab", num_workers=num_workers, layout=layout) as engines:
        sender = make_group_sender(name, engines, timeout_seconds=60.0)
        NCCL_OF_VLLM.prepare(FixedWeights(weights.items())).wait_until_read()
        assert await sender.init(engines) == {}
        for version, lost in (("1.1", set()), ("1.2", set()), ("1.3", {"a"})):
            for name in lost:
                engines[name].kill()
            weights["large"] += 1
            copy = NCCL_OF_VLLM.prepare(FixedWeights(weights.items()))
            assert await sync(sender, copy, engines=engines.keys() - lost, version=version) == set()
            for name in engines.keys() - lost:
                assert await engines[name].served() == [[version, digest_of(weights)]] * num_workers
            copy.wait_until_read()
        await sender.shutdown()


def test_a_device_that_is_no_gpu_is_refused() -> None:
    with pytest.raises(Exception, match="needs a GPU"):
        CudaDevice(torch.device("cpu"))
