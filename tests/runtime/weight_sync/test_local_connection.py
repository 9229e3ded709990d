"""The deadlines of a connection on one machine, and what happens when an end of it is gone."""

import socket
from collections.abc import Sequence

import pytest
from receiver_harness import packed

from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.interface import Info, Peer, SenderSettings, WeightSyncError
from grpo_runtime.weight_sync.local_connection import (
    LocalConnection,
    SocketInit,
    TrainerSocket,
    WorkerListener,
)
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

TIMEOUT_SECONDS = 3000.0
KEY = "k" * 32


class StandInTransport:
    """Delivers nothing, and notes the deadlines under which it was to."""

    def __init__(self) -> None:
        self.stall_seconds: list[float] = []
        self.socket_seconds: list[float | None] = []

    def open(self) -> Info:
        return {}

    def deliver(self, weights: HostCopy, workers: Sequence[socket.socket], *, stall_seconds: float) -> None:
        self.stall_seconds.append(stall_seconds)
        self.socket_seconds += [worker.gettimeout() for worker in workers]

    def finished(self) -> None:
        return

    def close(self) -> None:
        return


class StandInWorker:
    """A worker that comes to the socket and takes whatever it is told."""

    def __init__(self) -> None:
        self.socket = TrainerSocket()
        self.stall_seconds: list[float] = []

    async def init(self, info: Info) -> None:
        self.socket.connect(SocketInit.model_validate(dict(info)))

    async def start(self) -> None:
        return

    async def update(self, info: Info) -> None:
        self.stall_seconds.append(info["stall_seconds"])

    async def finish(self, version: str) -> None:
        return

    async def shutdown(self) -> None:
        return


async def test_each_transfer_has_the_deadlines_that_follow_from_those_before() -> None:
    deadlines, transport, worker = Deadlines(TIMEOUT_SECONDS), StandInTransport(), StandInWorker()
    peer = Peer(worker, host="localhost")
    connection = LocalConnection(peer, SenderSettings(deadlines), transport=transport)
    await connection.init()
    await connection.update(packed(1))
    assert deadlines.of("transfer") < TIMEOUT_SECONDS, "what it took is not noted"
    deadlines.note("transfer", 20.0)
    await connection.update(packed(2))
    assert transport.stall_seconds == worker.stall_seconds == [10.0, 100.0]
    assert transport.socket_seconds == [10.0, 100.0]
    await connection.shutdown()


def test_a_worker_whose_key_cannot_be_sent_says_so_and_has_no_socket() -> None:
    with WorkerListener(num_workers=1, key=KEY) as listener:
        # longer than a socket takes, as a trainer that is gone by now takes none
        init = SocketInit.model_construct(name=listener.init.name, key="k" * 10_000_000)
        worker = TrainerSocket()
        with pytest.raises(WeightSyncError, match="the trainer is not on this machine"):
            worker.connect(init)
        with pytest.raises(WeightSyncError, match="must init first"):
            worker.socket_for(init.key, stall_seconds=1.0)
