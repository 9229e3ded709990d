"""What is IPC's own, with stand-ins on the CPU for the GPU and for handles to its memory."""

import gc
import os
import socket
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from polling import wait_until
from receiver_harness import MakeSender, OneEngineSender, Receiver, prepared, some_weights, sync
from stand_in_handles import StandInHandles
from stand_in_nccl import StandInDevice
from weight_sources import FixedWeights

from grpo_runtime.weight_sync.interface import Info, WeightSyncError
from grpo_runtime.weight_sync.ipc import CudaHandles, IpcInit, IpcReceiver, IpcTransport
from grpo_runtime.weight_sync.local_connection import KEY_CHARACTERS, NUMBER, receive_number
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.manifest import BUFFERS_IN_FLIGHT, LARGEST_BUFFER_BYTES

BACKEND = "stand-in-ipc"

pytestmark = pytest.mark.parametrize("backend", [BACKEND])


async def test_handles_travel_on_the_control_channel_and_are_of_two_buffers_for_each_worker(
    receiver: Receiver, make_sender: MakeSender
) -> None:
    infos: list[IpcInit] = []
    init = receiver.init

    async def listen(info: Info) -> None:
        infos.append(IpcInit.model_validate(dict(info)))
        await init(info)

    receiver.init = listen  # type: ignore[method-assign]
    sender = make_sender()
    await sender.init()
    await sync(sender, prepared(BACKEND, 1), version="1.1")
    assert receiver.serves(some_weights(1))
    assert [len(slots) for slots in infos[0].slots] == [2]
    assert infos[0].key not in repr(infos[0])


@pytest.fixture
def memory_made(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[weakref.ref[torch.Tensor]]]:
    """What engines were given to stage weights in, and what the trainer lends them."""
    made: dict[str, list[weakref.ref[torch.Tensor]]] = {"staged": [], "lent": []}

    def noting(make: Callable[[Any, int], torch.Tensor], kind: str) -> Any:
        def noted(self: Any, num_bytes: int) -> torch.Tensor:
            tensor = make(self, num_bytes)
            made[kind].append(weakref.ref(tensor))
            return tensor

        return noted

    monkeypatch.setattr(StandInDevice, "staging_memory", noting(StandInDevice.staging_memory, "staged"))
    monkeypatch.setattr(StandInHandles, "allocate", noting(StandInHandles.allocate, "lent"))
    return made


class Worker:
    """The trainer's end of the socket to a worker that takes each buffer when it is asked for."""

    def __init__(self) -> None:
        self.what_happened: list[int | str] = []

    def send(self, data: bytes) -> None:
        self.what_happened += NUMBER.unpack(data)

    def recv(self, num_bytes: int) -> bytes:
        self.what_happened.append("taken")
        return NUMBER.pack(0)


def test_a_buffer_is_filled_again_once_every_worker_has_taken_it(backend: str) -> None:
    device, workers = StandInDevice(), [Worker(), Worker()]
    transport = IpcTransport(device, StandInHandles(device), num_workers=2)
    transport.open()
    copy = HostCopy(FixedWeights([("w", torch.arange(16.0))]), buffer_bytes=16)
    transport.deliver(copy, workers, stall_seconds=40.0)  # type: ignore[arg-type]
    of_each = [1, 2, "taken", 3, "taken", 4, "taken", 5, "taken", "taken"]
    assert [worker.what_happened for worker in workers] == [of_each] * 2
    transport.close()


async def test_memory_of_the_gpu_is_given_back_by_engines_after_a_sync_and_by_the_trainer_at_the_end(
    receiver: Receiver,
    memory_made: dict[str, list[weakref.ref[torch.Tensor]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StandInDevice, "has_room", True)
    sender = OneEngineSender(BACKEND, receiver, timeout_seconds=40.0)
    await sender.init()
    for seed in (1, 2):
        await sync(sender, prepared(BACKEND, seed), version=f"1.{seed}")
        assert receiver.serves(some_weights(seed))
        gc.collect()
        assert [memory() for memory in memory_made["staged"]] == [None] * seed
    lent = memory_made["lent"]
    assert [memory() is None for memory in lent] == [False, False]
    await sender.shutdown()
    wait_until(lambda: [memory() for memory in lent] == [None, None], "the trainer gives its buffers back")


async def test_memory_of_the_host_is_used_again_for_every_sync_and_every_trainer(
    receiver: Receiver,
    memory_made: dict[str, list[weakref.ref[torch.Tensor]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StandInDevice, "has_room", False)
    for seed in (1, 2, 3):
        sender = OneEngineSender(BACKEND, receiver, timeout_seconds=40.0)
        await sender.init()
        await sync(sender, prepared(BACKEND, seed), version=f"1.{seed}")
        assert receiver.serves(some_weights(seed))
        await sender.shutdown()
    gc.collect()
    assert [memory() is None for memory in memory_made["staged"]] == [False]


async def test_memory_of_the_host_is_kept_while_the_gpu_has_room_for_a_sync(
    receiver: Receiver,
    memory_made: dict[str, list[weakref.ref[torch.Tensor]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sender = OneEngineSender(BACKEND, receiver, timeout_seconds=40.0)
    await sender.init()
    for seed, has_room in ((1, False), (2, True), (3, False)):
        monkeypatch.setattr(StandInDevice, "has_room", has_room)
        await sync(sender, prepared(BACKEND, seed), version=f"1.{seed}")
        assert receiver.serves(some_weights(seed))
    await sender.shutdown()
    gc.collect()
    # the second one was the GPU's
    assert [memory() is None for memory in memory_made["staged"]] == [False, True]


async def test_an_engine_that_has_the_memory_already_needs_no_room_for_it(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Without room weights are loaded while they arrive, and the model has them before `finish`."""
    monkeypatch.setattr(StandInDevice, "has_room", False)
    receiver = Receiver(backend)
    sender = OneEngineSender(backend, receiver, timeout_seconds=40.0)
    await sender.init()
    await sync(sender, prepared(backend, 1), version="1.1")
    receiver.has_room = False
    await sender.start()
    await sender.update(prepared(backend, 2))
    assert receiver.serves(some_weights(1))
    await sender.finish("1.2")
    assert receiver.serves(some_weights(2))
    await sender.shutdown()


async def test_weights_in_larger_buffers_than_the_trainers_are_refused(
    receiver: Receiver, make_sender: MakeSender
) -> None:
    sender = make_sender()
    await sender.init()
    await sender.start()
    large = FixedWeights(some_weights(1).items())
    with pytest.raises(WeightSyncError, match="buffers of more than"):
        await sender.update(HostCopy(large, buffer_bytes=LARGEST_BUFFER_BYTES + 16))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"slots": []}, "no buffers for worker 0"),
        ({"slots": [[{}]]}, "no buffers for worker 0"),
        ({"key": "short"}, "not understood"),
        ({"more": 1}, "not understood"),
    ],
)
def test_an_init_that_is_not_one_is_refused(backend: str, change: dict[str, Any], sentence: str) -> None:
    device = StandInDevice()
    receiver = IpcReceiver(device, StandInHandles(device), worker=0)
    info = {"name": "n" * 20, "key": "k" * 32, "slots": [[{}, {}]], **change}
    with pytest.raises(WeightSyncError, match=sentence):
        receiver.init(info)


def test_a_stand_in_handle_opens_no_other_file_that_got_its_number(backend: str, tmp_path: Path) -> None:
    device = StandInDevice()
    handles = StandInHandles(device)
    with device.use():
        handle = handles.export(handles.allocate(4096))
        handles.release(handle)
        with (tmp_path / "other").open("w+b") as other:
            # the lowest number that is free
            assert other.fileno() == int(Path(handle["path"]).name)
            with pytest.raises(WeightSyncError, match="let go of this memory"):
                handles.open(handle)


@pytest.mark.parametrize("handle", [{}, {"memory": "not hexadecimal"}, {"pickle": "gASVAAAA"}])
def test_a_handle_of_cuda_is_bytes_and_numbers_and_nothing_else(backend: str, handle: dict[str, Any]) -> None:
    handles = CudaHandles.__new__(CudaHandles)  # opening needs no device of its own
    with pytest.raises(WeightSyncError, match="not understood"):
        handles.open(handle)


class LateDevice(StandInDevice):
    """A GPU that does what it is told when it is waited for, and not before."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[Callable[[], object]] = []

    def synchronize(self) -> None:
        super().synchronize()
        while self.queue:
            self.queue.pop(0)()


def test_the_trainer_does_not_write_over_a_buffer_that_the_gpu_has_not_read(backend: str) -> None:
    """What is staged in host memory is loaded from the trainer's buffers."""
    device = LateDevice()
    handles = StandInHandles(device)
    with device.use():
        slots = [handles.allocate(64) for _ in range(BUFFERS_IN_FLIGHT)]
        exported = [handles.export(slot) for slot in slots]
    name, key = "n" * 20, "k" * KEY_CHARACTERS
    with ThreadPoolExecutor(1) as pool, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"\0{name}{os.getpid()}")
        listening.listen()

        def send() -> None:
            worker, _ = listening.accept()
            with worker:
                worker.settimeout(60.0)
                assert worker.recv(KEY_CHARACTERS) == key.encode()
                for number, slot in enumerate(slots, start=1):
                    slot.fill_(number)
                    worker.send(NUMBER.pack(number))
                    assert receive_number(worker) == number
                    slot.fill_(0xEE)

        sending = pool.submit(send)
        receiver = IpcReceiver(device, handles, worker=0)
        receiver.init({"name": f"{name}{os.getpid()}", "key": key, "slot_bytes": 64, "slots": [exported]})
        receiver.memory(128, connection=key, stall_seconds=40.0)
        loaded = torch.zeros(2, 64, dtype=torch.uint8)
        on_host = [torch.zeros(64, dtype=torch.uint8) for _ in slots]
        for row, passed in zip(loaded, receiver.receive(on_host, stall_seconds=40.0), strict=True):
            device.queue.append(partial(row.copy_, passed))
        sending.result()
        receiver.shutdown()
    assert loaded.tolist() == [[1] * 64, [2] * 64]
