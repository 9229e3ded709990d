"""What an engine's worker does with updates that it receives beside its steps, and whether it has room to
stage weights beside the model."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_runtime.process.free_memory import free_memory
from grpo_runtime.weight_sync.interface import NeedsPauseError, WeightSyncError
from grpo_runtime.weight_sync.worker.extension import BESIDE, ReceivingExtension
from grpo_runtime.weight_sync.worker.transfer_engine import (
    KEPT_FREE_BYTES,
    InitInfo,
    StagedWeightTransferEngine,
)


def has_room(num_bytes: int, *, num_workers: int, num_cores: int = 1) -> bool:
    """What a worker says of whose kind there are so many in each core of its container."""
    sizes = {"local_world_size": num_workers, "data_parallel_size_local": num_cores}
    worker: Any = SimpleNamespace(parallel_config=SimpleNamespace(**sizes))
    return StagedWeightTransferEngine.has_room(worker, num_bytes)


@pytest.mark.parametrize(("num_workers", "has_it"), [(1, True), (2, False), (4, False)])
def test_there_is_room_only_if_every_worker_of_the_container_can_stage(
    num_workers: int, has_it: bool
) -> None:
    num_bytes = int((free_memory() - KEPT_FREE_BYTES) * 0.7)
    assert num_bytes > 0
    assert has_room(num_bytes, num_workers=num_workers) is has_it
    assert has_room(num_bytes, num_workers=1, num_cores=num_workers) is has_it
    assert has_room(0, num_workers=num_workers)


class ScriptedReceiver:
    """Receives until it may end, notes the calls, and raises what `fails_with` is."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_receiving, self.may_end = threading.Event(), threading.Event()
        self.fails_with: Exception | None = None

    def init(self, info: Any) -> None:
        self.calls.append("init")

    def start(self) -> None:
        self.calls.append("start")

    def update(self, info: Any) -> None:
        assert info == {"of": "the sender"}
        self.calls.append("receiving")
        self.is_receiving.set()
        assert self.may_end.wait(30)
        self.calls.append("received")
        if self.fails_with is not None:
            raise self.fails_with

    def take(self) -> None:
        self.calls.append("take")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def transfer_engine(receiver: ScriptedReceiver, *, num_free: int | None = None) -> StagedWeightTransferEngine:
    """One without a model, which has memory for so many bytes where that is given."""

    class Engine(StagedWeightTransferEngine):
        def __init__(self) -> None:
            self.device = torch.device("cpu")
            self._receiving, self._received_as = None, ""
            self._receiver, self._shares_gpu = receiver, False

        def has_room(self, num_bytes: int) -> bool:
            return num_free is None or num_bytes <= num_free

    return Engine()


def worker_of(engine: StagedWeightTransferEngine) -> ReceivingExtension:
    """The worker of that engine, in which an update is open."""
    worker = ReceivingExtension()
    worker.weight_transfer_engine, worker._weight_update_active = engine, True
    return worker


def begin(engine: StagedWeightTransferEngine, name: str) -> None:
    """What the server calls while its engine samples."""
    engine.update_weights({"of": "the sender", BESIDE: name})


def test_an_update_beside_the_steps_blocks_nobody_until_it_is_finished() -> None:
    receiver = ScriptedReceiver()
    engine = transfer_engine(receiver)
    worker = worker_of(engine)
    engine.start_weight_update()
    begin(engine, "first")
    assert receiver.is_receiving.wait(30)
    assert not worker.has_received_weights("first")
    receiver.may_end.set()
    while not worker.has_received_weights("first"):
        pass
    worker.end_weight_reception("first")
    engine.finish_weight_update()
    assert receiver.calls == ["start", "receiving", "received", "take"]
    assert worker._weight_update_active


def test_an_update_beside_the_steps_that_fails_ends_as_one_that_vllm_was_told_of_at_once() -> None:
    receiver = ScriptedReceiver()
    receiver.fails_with = WeightSyncError("not the bytes announced")
    receiver.may_end.set()
    engine = transfer_engine(receiver)
    worker = worker_of(engine)
    begin(engine, "first")
    while not worker.has_received_weights("first"):
        pass
    with pytest.raises(WeightSyncError, match="not the bytes announced"):
        worker.end_weight_reception("first")
    assert not worker._weight_update_active


@pytest.mark.parametrize(
    ("follow", "call"),
    [
        (lambda engine: engine.init_transfer_engine(InitInfo()), "init"),
        (lambda engine: engine.start_weight_update(), "start"),
        (lambda engine: engine.update_weights({"of": "the sender"}), "receiving"),
        (lambda engine: engine.finish_weight_update(), "take"),
        (lambda engine: engine.shutdown(), "shutdown"),
    ],
)
def test_what_follows_an_update_waits_for_the_thread_that_receives_it(
    follow: Callable[[StagedWeightTransferEngine], None], call: str
) -> None:
    receiver = ScriptedReceiver()
    engine = transfer_engine(receiver)
    begin(engine, "first")
    assert receiver.is_receiving.wait(30)
    following = threading.Thread(target=follow, args=(engine,))
    following.start()
    receiver.may_end.set()
    following.join(30)
    assert receiver.calls[:3] == ["receiving", "received", call]


def test_who_asks_for_an_update_that_another_one_has_followed_is_told_so() -> None:
    receiver = ScriptedReceiver()
    receiver.may_end.set()
    engine = transfer_engine(receiver)
    begin(engine, "first")
    begin(engine, "second")
    worker = worker_of(engine)
    for ask in (worker.has_received_weights, worker.end_weight_reception):
        with pytest.raises(WeightSyncError, match="another weight update has begun"):
            ask("first")
    # the second one goes on
    assert worker._weight_update_active
    worker.end_weight_reception("second")


def test_weights_never_go_into_a_model_that_samples_while_they_arrive() -> None:
    receiver = ScriptedReceiver()
    receiver.may_end.set()
    engine = transfer_engine(receiver, num_free=10)
    engine.update_weights({"of": "the sender"})
    # the engine is paused: where there is no room, they go into its model
    assert (engine._may_stage(10), engine._may_stage(11)) == (True, False)
    begin(engine, "first")
    assert engine._may_stage(10)
    with pytest.raises(NeedsPauseError, match="must be paused to receive: it has no memory for 11 bytes"):
        engine._may_stage(11)
