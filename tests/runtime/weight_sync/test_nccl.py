"""What is NCCL's own, with a stand-in on the CPU for the library and the GPU."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
import torch
from stand_in_nccl import StandInDevice, StandInNccl
from torch.distributed import Store, TCPStore

from grpo_runtime.weight_sync.engine_names import backend_of, name_in_vllm
from grpo_runtime.weight_sync.interface import GroupBrokenError, ReceiverSettings, WeightSyncError
from grpo_runtime.weight_sync.network.meeting import Place, host_store
from grpo_runtime.weight_sync.network.nccl import NcclGroup, _environment
from grpo_runtime.weight_sync.network.watchdog import Watchdog
from grpo_runtime.weight_sync.registry import find_backend
from grpo_runtime.weight_sync.stream.device import CudaDevice

ADDRESS = "127.0.0.1"
FAR_AWAY_SECONDS = 60.0


def member(
    store: Store, rank: int, *, size: int, meeting_seconds: float = 10.0, key: str = "key"
) -> NcclGroup:
    place = Place(key, rank, size, meeting_seconds)
    return NcclGroup(store, place, own_address=ADDRESS, connect=StandInNccl, device=StandInDevice())


def pair() -> tuple[NcclGroup, NcclGroup]:
    """The trainer and an engine of one group."""
    hosted = host_store(ADDRESS, timeout_seconds=10.0)
    found = TCPStore(ADDRESS, hosted.port, is_master=False, wait_for_workers=False)
    with ThreadPoolExecutor(2) as pool:
        ends = [
            pool.submit(partial(member, size=2), store, rank) for rank, store in ((0, hosted), (1, found))
        ]
        return ends[0].result(), ends[1].result()


def test_a_member_that_does_not_come_is_given_up_at_the_deadline() -> None:
    start = time.monotonic()
    with pytest.raises(GroupBrokenError) as failure:
        member(host_store(ADDRESS, timeout_seconds=0.5), 0, size=2, meeting_seconds=0.5)
    assert "NCCL_SOCKET_IFNAME" not in str(failure.value)
    assert time.monotonic() - start < FAR_AWAY_SECONDS / 2


def test_a_member_that_goes_before_the_library_meets_is_given_up_at_the_deadline() -> None:
    store = host_store(ADDRESS, timeout_seconds=10.0)
    store.set("key/members/1", "")
    with pytest.raises(GroupBrokenError, match=r"aborted: it has not gone on for 0\.5 s") as failure:
        member(store, 0, size=2, meeting_seconds=0.5)
    assert "is NCCL_SOCKET_IFNAME right? Set it in both roles, or set weightSync.backend Gloo" in str(
        failure.value
    )


def test_a_broadcast_that_nobody_sends_is_aborted_at_its_deadline() -> None:
    trainer, engine = pair()
    work = engine.broadcast(torch.zeros(64, dtype=torch.uint8), timeout_seconds=0.3)
    with pytest.raises(GroupBrokenError, match=r"0\.3 s"):
        work.wait()
    with pytest.raises(GroupBrokenError):
        engine.broadcast(torch.zeros(64, dtype=torch.uint8), timeout_seconds=0.3)
    trainer.close()


def test_an_engine_learns_at_once_that_the_trainer_has_left() -> None:
    """NCCL says nothing to the others when a member aborts."""
    trainer, engine = pair()
    work = engine.broadcast(torch.zeros(64, dtype=torch.uint8), timeout_seconds=FAR_AWAY_SECONDS)
    start = time.monotonic()
    trainer.close()
    with pytest.raises(GroupBrokenError):
        work.wait()
    assert time.monotonic() - start < FAR_AWAY_SECONDS / 2
    engine.close()


class StoreThatGoes(Store):  # type: ignore[misc] # a class of torch's C++
    """A store of one member, which takes nothing any more once it is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.is_gone = False
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        if self.is_gone:
            raise RuntimeError("Broken pipe")
        self._values[key] = value

    def get(self, key: str) -> bytes:
        return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        assert set(keys) <= self._values.keys()


def test_a_trainer_that_cannot_say_that_it_leaves_aborts_its_group_nevertheless() -> None:
    aborted = threading.Event()

    class Abortable(StandInNccl):
        def abort(self) -> None:
            super().abort()
            aborted.set()

    store = StoreThatGoes()
    place = Place("key", 0, 1, 10.0)
    group = NcclGroup(store, place, own_address=ADDRESS, connect=Abortable, device=StandInDevice())
    store.is_gone = True
    group.close()
    assert aborted.wait(FAR_AWAY_SECONDS)


def test_bytes_go_from_host_and_device_memory_to_host_and_device_memory() -> None:
    trainer, engine = pair()
    data = torch.arange(100, dtype=torch.uint8)
    for source in (data, trainer.device.empty(100).copy_(data)):
        for target in (torch.zeros(100, dtype=torch.uint8), engine.device.empty(100)):
            sent = trainer.broadcast(source, timeout_seconds=10.0)
            passed = engine.broadcast(target, timeout_seconds=10.0).wait()
            sent.wait()
            assert torch.equal(target, data)
            assert engine.device.holds(passed)
            assert torch.equal(passed, data)
    trainer.close()
    engine.close()


def test_a_watchdog_aborts_once_and_says_so_even_when_what_it_ended_looks_done() -> None:
    aborted: list[bool] = []
    is_aborted = threading.Event()

    def abort() -> None:
        aborted.append(True)
        is_aborted.set()

    watchdog = Watchdog(abort)
    with watchdog.within(FAR_AWAY_SECONDS):
        assert not is_aborted.is_set()
    with pytest.raises(GroupBrokenError, match="not gone on"), watchdog.within(0.05):
        assert is_aborted.wait(FAR_AWAY_SECONDS)
    watchdog.abort_now()
    with pytest.raises(GroupBrokenError), watchdog.within(FAR_AWAY_SECONDS):
        pass
    assert aborted == [True]


def test_the_groups_of_training_keep_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "0")
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    with _environment(TORCH_NCCL_BLOCKING_WAIT="1", TORCH_NCCL_ASYNC_ERROR_HANDLING="0"):
        assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1"
    assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "0"
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in os.environ


@pytest.mark.parametrize("backend", ["nccl", "ipc"])
def test_an_engine_on_the_cpu_is_refused(backend: str) -> None:
    with pytest.raises(WeightSyncError, match="needs a GPU"):
        find_backend(backend).make_receiver(ReceiverSettings(layout={}))
    with pytest.raises(WeightSyncError, match="needs a GPU"):
        CudaDevice(torch.device("cpu"))


def test_our_engines_have_names_that_vllm_has_not_taken() -> None:
    assert [name_in_vllm(name) for name in ("gloo", "nccl", "ipc")] == ["gloo", "grpo_nccl", "grpo_ipc"]
    assert [backend_of(name_in_vllm(name)) for name in ("gloo", "nccl", "ipc")] == ["gloo", "nccl", "ipc"]
