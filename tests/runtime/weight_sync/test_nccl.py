"""What is NCCL's own, with a stand-in on the CPU for the library and the GPU."""

import base64
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
from receiver_harness import Receiver
from stand_in_nccl import StandInDevice, StandInNccl
from test_gloo import ListeningReceiver
from torch.distributed import Store, TCPStore

from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.engine_names import backend_of, name_in_vllm
from grpo_runtime.weight_sync.group import UNIQUE_ID_BYTES, GroupMember, host_store, parse_init_info
from grpo_runtime.weight_sync.group_sender import GroupSender
from grpo_runtime.weight_sync.interface import (
    GroupBrokenError,
    Peer,
    ReceiverSettings,
    SenderSettings,
    WeightSyncError,
)
from grpo_runtime.weight_sync.nccl import Connect, NcclGroup, _environment, _id_while_meeting, _store_of_id
from grpo_runtime.weight_sync.registry import find_backend
from grpo_runtime.weight_sync.stream.memory import CudaDevice
from grpo_runtime.weight_sync.watchdog import Watchdog

ADDRESS = "127.0.0.1"
FAR_AWAY_SECONDS = 60.0
SOME_ID = bytes(range(UNIQUE_ID_BYTES))
IN_BASE64 = base64.b64encode(SOME_ID).decode()


def member(
    store: Store,
    rank: int,
    *,
    size: int,
    meeting_seconds: float = FAR_AWAY_SECONDS,
    nccl_id: bytes = b"",
    invite: Callable[[bytes], None] = lambda nccl_id: None,
    connect: Connect = StandInNccl,
) -> NcclGroup:
    own = GroupMember("key", rank, size, meeting_seconds, nccl_id)
    return NcclGroup(store, own, own_address=ADDRESS, invite=invite, connect=connect, device=StandInDevice())


def pair(hosted: TCPStore | None = None) -> tuple[NcclGroup, NcclGroup]:
    """The trainer and an engine of one group."""
    hosted = hosted or host_store(ADDRESS, timeout_seconds=FAR_AWAY_SECONDS)
    found = TCPStore(ADDRESS, hosted.port, is_master=False, wait_for_workers=False)
    invited: Future[bytes] = Future()
    with ThreadPoolExecutor(2) as pool:
        trainer = pool.submit(partial(member, hosted, 0, size=2, invite=invited.set_result))
        nccl_id = invited.result(FAR_AWAY_SECONDS)
        engine = pool.submit(partial(member, found, 1, size=2, nccl_id=nccl_id))
        return trainer.result(), engine.result()


def init_info(**changes: Any) -> dict[str, Any]:
    where = {"address": ADDRESS, "port": 1, "key": "k" * 16, "first_rank": 1, "size": 2}
    return {**where, "meeting_seconds": 1.0, "nccl_unique_id_b64": IN_BASE64, **changes}


def sender_to(receiver: Receiver, *, connect: Connect = StandInNccl) -> GroupSender:
    join = partial(NcclGroup, connect=connect, device=StandInDevice())
    peers = {"a": Peer(receiver, host=ADDRESS)}
    return GroupSender(peers, SenderSettings(Deadlines(FAR_AWAY_SECONDS)), join=join)


async def test_every_group_has_an_id_of_its_own_which_comes_over_the_control_channel() -> None:
    receiver = ListeningReceiver("stand-in-nccl")
    sender = sender_to(receiver)
    for _ in range(2):
        assert await sender.init("a") == {}
    await sender.shutdown()
    await receiver.shutdown()
    first, second = (info.member(worker=0).nccl_id for info in receiver.infos)
    assert len(first) == len(second) == UNIQUE_ID_BYTES
    assert first != second


def test_the_store_has_nothing_but_who_is_there_and_whether_the_trainer_has_left() -> None:
    """Every client of its port can read it, and write to it."""
    store = host_store(ADDRESS, timeout_seconds=FAR_AWAY_SECONDS)
    trainer, engine = pair(store)
    assert sorted(store.list_keys()) == ["key/members/0", "key/members/1"]  # type: ignore[attr-defined]
    assert {store.get(f"key/members/{rank}") for rank in range(2)} == {b""}
    # by a connection of its own: a store does one thing at a time, and the trainer writes by the first
    another = TCPStore(ADDRESS, store.port, is_master=False, wait_for_workers=False)
    trainer.close()
    another.wait(["key/members/left"], timedelta(seconds=FAR_AWAY_SECONDS))
    assert another.num_keys() == 3
    engine.close()


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        IN_BASE64[:-4],
        IN_BASE64 + "AAAA",
        IN_BASE64 + "\n",
        IN_BASE64.replace("A", "!"),
        base64.b64encode(bytes(UNIQUE_ID_BYTES - 1)).decode(),
        7,
    ],
)
def test_what_is_no_id_of_nccl_is_refused_and_not_repeated(wrong: object) -> None:
    with pytest.raises(WeightSyncError, match="nccl_unique_id_b64") as failure:
        parse_init_info(init_info(nccl_unique_id_b64=wrong))
    assert IN_BASE64[8:24] not in str(failure.value)


def test_an_id_is_not_in_what_may_be_logged() -> None:
    info = parse_init_info(init_info())
    own = info.member(worker=0)
    assert own.nccl_id == SOME_ID
    for shown in (repr(info), str(info), repr(own)):
        assert IN_BASE64[:16] not in shown
        assert repr(SOME_ID)[2:20] not in shown


def test_an_engine_that_was_told_no_id_refuses_to_come() -> None:
    with pytest.raises(WeightSyncError, match="no id of NCCL") as failure:
        member(host_store(ADDRESS, timeout_seconds=FAR_AWAY_SECONDS), 1, size=2)
    # and not as one that another one has failed
    assert not isinstance(failure.value, GroupBrokenError)


def test_the_id_is_where_torch_reads_it_and_only_with_the_engines() -> None:
    assert _store_of_id(GroupMember("key", 1, 2, 1.0, SOME_ID)).get("0") == SOME_ID
    with pytest.raises(RuntimeError):
        _store_of_id(GroupMember("key", 0, 2, 0.1)).get("0")


async def test_a_trainer_that_cannot_begin_a_group_says_so_and_calls_no_engine() -> None:
    class Broken(StandInNccl):
        def meet(self) -> None:
            raise RuntimeError("no socket interface found")

    receiver = ListeningReceiver("stand-in-nccl")
    sender = sender_to(receiver, connect=Broken)
    failures = await sender.init("a")
    assert "no socket interface found; is NCCL_SOCKET_IFNAME right?" in str(failures["a"])
    assert receiver.infos == []
    await sender.shutdown()
    await receiver.shutdown()


def test_a_meeting_is_given_up_at_its_deadline_also_when_the_abort_has_to_wait_for_it() -> None:
    """As torch's for its lock, until a limit that is the same for all groups of a process."""
    lock, is_over = threading.Lock(), threading.Event()
    aborted = threading.Event()

    class Locked(StandInNccl):
        def unique_id(self) -> bytes:
            return SOME_ID

        def meet(self) -> None:
            with lock:
                is_over.wait(FAR_AWAY_SECONDS)

        def abort(self) -> None:
            with lock:
                super().abort()
            aborted.set()

    store = host_store(ADDRESS, timeout_seconds=FAR_AWAY_SECONDS)
    store.set("key/members/1", "")
    start = time.monotonic()
    with pytest.raises(GroupBrokenError, match=r"aborted: no progress for 0\.5 s"):
        member(store, 0, size=2, meeting_seconds=0.5, connect=Locked)
    assert time.monotonic() - start < FAR_AWAY_SECONDS / 2
    assert not aborted.is_set()
    is_over.set()
    assert aborted.wait(FAR_AWAY_SECONDS)


def test_a_member_that_does_not_come_is_given_up_at_the_deadline() -> None:
    start = time.monotonic()
    with pytest.raises(GroupBrokenError) as failure:
        member(host_store(ADDRESS, timeout_seconds=0.5), 0, size=2, meeting_seconds=0.5)
    assert "NCCL_SOCKET_IFNAME" not in str(failure.value)
    assert time.monotonic() - start < FAR_AWAY_SECONDS / 2


def test_a_member_that_goes_before_the_library_meets_is_given_up_at_the_deadline() -> None:
    store = host_store(ADDRESS, timeout_seconds=FAR_AWAY_SECONDS)
    store.set("key/members/1", "")
    with pytest.raises(GroupBrokenError, match=r"aborted: no progress for 0\.5 s") as failure:
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
    group = member(store, 0, size=1, connect=Abortable)
    store.is_gone = True
    group.close()
    assert aborted.wait(FAR_AWAY_SECONDS)


def test_a_meeting_that_ends_before_its_id_was_seen_has_one() -> None:
    class WithId(StandInNccl):
        def unique_id(self) -> bytes:
            return SOME_ID

    met: Future[None] = Future()
    met.set_result(None)
    alone = WithId(GroupMember("key", 0, 1, FAR_AWAY_SECONDS, b""), device=StandInDevice())
    assert _id_while_meeting(alone, met, ends_at=time.monotonic() + FAR_AWAY_SECONDS) == SOME_ID
    failed: Future[None] = Future()
    failed.set_exception(GroupBrokenError("refused"))
    with pytest.raises(GroupBrokenError, match="refused"):
        _id_while_meeting(alone, failed, ends_at=time.monotonic() + FAR_AWAY_SECONDS)
    alone.abort()


def test_bytes_go_from_host_and_device_memory_to_host_and_device_memory() -> None:
    trainer, engine = pair()
    data = torch.arange(100, dtype=torch.uint8)
    for source in (data, trainer.device.empty(100).copy_(data)):
        for target in (torch.zeros(100, dtype=torch.uint8), engine.device.empty(100)):
            sent = trainer.broadcast(source, timeout_seconds=FAR_AWAY_SECONDS)
            passed = engine.broadcast(target, timeout_seconds=FAR_AWAY_SECONDS).wait()
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
    with pytest.raises(GroupBrokenError, match="no progress"), watchdog.within(0.05):
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
