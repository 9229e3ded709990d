"""A transfer engine of vLLM as a backend, here one that is written in the tests: what it keeps of the
contract of all backends, and the weaker promise where it keeps less. An engine whose transfer breaks ends,
and is never there with a model that is neither the old nor the new one.
"""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import pytest
import receiver_harness
import socket_engine
import test_losses
import torch
from backends import BROUGHT
from pod_builder import run_config, trainer_environment
from receiver_harness import accident, make_group_sender, packed, prepare, prepared, some_weights
from test_losses import TIMEOUT_SECONDS, kill, require_served, sender_to
from test_several_engines import sync
from worker_processes import EngineOfProcesses, engines_of_processes

from grpo_api.v1alpha1.spec.weight_sync import VLLM_TRANSFER_ENGINES
from grpo_runtime.errors import UserError
from grpo_runtime.settings import read_trainer_settings
from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.engine_names import name_in_vllm
from grpo_runtime.weight_sync.interface import (
    GroupBrokenError,
    Info,
    ModelBrokenError,
    Peer,
    Reach,
    ReceiverSettings,
    SenderSettings,
    WeightSyncError,
)
from grpo_runtime.weight_sync.registry import VLLM_NATIVE, all_backends
from grpo_runtime.weight_sync.vllm_native.receiver import VllmNativeReceiver

BACKEND = BROUGHT.name
GIVE_UP_SECONDS = 60.0


@asynccontextmanager
async def one_engine() -> AsyncIterator[EngineOfProcesses]:
    async with engines_of_processes(BACKEND, "a") as engines:
        yield engines["a"]


async def require_ended(engine: EngineOfProcesses) -> None:
    """Its process has ended: it serves nothing."""
    with pytest.raises(WeightSyncError, match="the worker is gone"):
        await asyncio.wait_for(engine.served(), GIVE_UP_SECONDS)


async def require_restarted_engine_takes_weights() -> None:
    """What the kubelet starts again is an engine as any other."""
    async with engines_of_processes(BACKEND, "a") as engines:
        sender = sender_to(BACKEND, engines)
        assert await sender.init(engines) == {}
        assert await sync(sender, packed(2), engines={"a"}, version="1.2") == set()
        await require_served(engines, seed=2, version="1.2")
        await sender.shutdown()


@pytest.mark.at_once
@pytest.mark.parametrize("names", ["a", "abc"])
@pytest.mark.parametrize("num_workers", [1, 2])
async def test_every_worker_of_every_engine_gets_sync_after_sync(names: str, num_workers: int) -> None:
    await test_losses.test_every_worker_of_every_engine_gets_sync_after_sync(BACKEND, names, num_workers)


KEPT: list[Callable[[str], Any]] = [
    test_losses.test_an_engine_that_joins_in_mid_step_gets_the_same_weights_and_then_shares_the_sender,
    test_losses.test_an_engine_that_stood_still_for_a_while_fails_nobody_else,
    test_losses.test_weights_that_are_late_are_waited_for_before_any_engine_is,
    test_losses.test_a_sender_that_was_succeeded_changes_nothing,
    test_losses.test_a_repeated_finish_changes_nothing,
]


@pytest.mark.at_once
@pytest.mark.parametrize("test", KEPT, ids=lambda test: test.__name__.removeprefix("test_"))
async def test_it_keeps_of_the_contract(test: Callable[[str], Any]) -> None:
    await test(BACKEND)


@pytest.mark.at_once
@pytest.mark.parametrize("happens", [kill, test_losses.freeze], ids=["killed", "hung"])
@pytest.mark.parametrize("phase", ["init", "start", "update", "transfer", "finish"])
async def test_an_engine_that_is_lost_in_a_phase_is_named_and_the_others_get_the_weights(
    phase: str, happens: test_losses.Accident
) -> None:
    await test_losses.test_an_engine_that_is_lost_in_a_phase_is_named_and_the_others_get_the_weights(
        BACKEND, phase, happens
    )


@pytest.mark.at_once
async def test_an_engine_that_was_hung_in_a_transfer_ends_at_the_latest_when_it_is_tried_again() -> None:
    """Also where it had got all bytes by then: nobody has finished its update."""
    async with engines_of_processes(BACKEND, "ab") as engines:
        sender = sender_to(BACKEND, engines)
        assert await sender.init(engines) == {}
        assert await sender.start(engines) == {}
        weights = packed(1, alter=accident(engines["b"].freeze))
        assert (await sender.update(weights, engines=engines)).keys() == {"b"}
        assert await sender.finish("1.1", engines="a") == {}
        await require_served({"a": engines["a"]}, seed=1, version="1.1")
        await sender.shutdown()
        engines["b"].thaw()
        alone = sender_to(BACKEND, {"b": engines["b"]})
        assert (await alone.init("b")).keys() == {"b"}
        await alone.shutdown()
        await require_ended(engines["b"])


@pytest.mark.at_once
async def test_an_engine_ends_or_keeps_its_weights_when_a_transfer_is_given_up_in_the_middle() -> None:
    async with one_engine() as engine:
        sender = sender_to(BACKEND, {"a": engine})
        assert await sender.init("a") == {}
        assert await sender.start("a") == {}
        is_under_way, is_over = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def stand_still() -> None:
            loop.call_soon_threadsafe(is_under_way.set)
            is_over.wait(GIVE_UP_SECONDS)

        update = asyncio.ensure_future(sender.update(packed(1, alter=accident(stand_still)), engines="a"))
        await is_under_way.wait()
        update.cancel()
        await asyncio.gather(update, return_exceptions=True)
        await sender.shutdown()
        try:
            await require_served({"a": engine}, seed=0, version="initial")
        except WeightSyncError as error:
            assert "the worker is gone" in str(error)
        # or the update had not reached it, and nothing has changed
        is_over.set()
    await require_restarted_engine_takes_weights()


async def test_an_engine_ends_when_the_trainer_is_killed_in_a_transfer() -> None:
    async with one_engine() as engine:
        script = Path(receiver_harness.__file__)
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            sys.executable, script, BACKEND, "stalled", stdin=pipe, stdout=pipe
        )
        assert child.stdin and child.stdout
        verb, arguments = "", list[Any]()
        while verb != "update":
            line = await asyncio.wait_for(child.stdout.readline(), GIVE_UP_SECONDS)
            verb, *arguments = json.loads(line)
            if verb != "update":
                await getattr(engine, verb)(*arguments)
                child.stdin.write(json.dumps("").encode() + b"\n")
        update = asyncio.ensure_future(engine.update(*arguments))
        child.kill()
        assert await child.wait() == -9
        with pytest.raises(WeightSyncError, match="the worker is gone"):
            await asyncio.wait_for(update, GIVE_UP_SECONDS)
    await require_restarted_engine_takes_weights()


@pytest.mark.at_once
@pytest.mark.parametrize("verb", ["abort", "start", "init"])
async def test_an_engine_ends_when_weights_that_its_model_has_are_given_up(verb: str) -> None:
    async with one_engine() as engine:
        sender, other = (sender_to(BACKEND, {"a": engine}) for _ in range(2))
        assert await sender.init("a") == {}
        assert await sender.start("a") == {}
        assert await sender.update(packed(1), engines="a") == {}
        await {"abort": sender.abort, "start": sender.start, "init": other.init}[verb]("a")
        await require_ended(engine)
        for one in (sender, other):
            await one.shutdown()


@pytest.mark.at_once
async def test_an_engine_whose_init_hangs_ends_at_the_deadline() -> None:
    """Nobody takes part on the other side: a call of NCCL cannot be interrupted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with one_engine() as engine:
            with pytest.raises(WeightSyncError, match="the worker is gone"):
                await engine.init(init_info(server.getsockname()[1], meeting_seconds=0.3))


@pytest.mark.at_once
async def test_an_engine_that_does_not_come_to_the_meeting_is_given_up_at_the_deadline() -> None:
    async with one_engine() as engine:

        async def never(info: object) -> None:
            await asyncio.Event().wait()

        engine.init = never  # type: ignore[method-assign, assignment]
        sender = make_group_sender(BACKEND, {"a": engine}, timeout_seconds=2.0)
        async with asyncio.timeout(GIVE_UP_SECONDS):
            assert (await sender.init("a")).keys() == {"a"}
        await sender.shutdown()


@pytest.mark.at_once
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda weights: weights.pop("scalar"), "scalar is missing"),
        (lambda weights: weights.update(more=weights["half"]), "has no more"),
        (lambda weights: weights.update(half=weights["half"].t()), r"half has shape \[3, 5\]"),
    ],
)
async def test_another_model_is_refused_before_the_model_is_touched(
    change: Callable[[dict[str, torch.Tensor]], object], sentence: str
) -> None:
    weights = some_weights(1)
    change(weights)
    async with one_engine() as engine:
        sender = sender_to(BACKEND, {"a": engine})
        assert await sender.init("a") == {}
        assert await sender.start("a") == {}
        failures = await sender.update(prepare(BACKEND, weights), engines="a")
        with pytest.raises(WeightSyncError, match=sentence):
            raise failures["a"]
        await sender.shutdown()
        await require_served({"a": engine}, seed=0, version="initial")

        successor = sender_to(BACKEND, {"a": engine})
        assert await successor.init("a") == {}
        assert await sync(successor, prepared(BACKEND, 1), engines={"a"}, version="1.1") == set()
        await require_served({"a": engine}, seed=1, version="1.1")
        await successor.shutdown()


@pytest.mark.at_once
async def test_an_update_that_is_given_up_before_a_byte_leaves_the_old_weights() -> None:
    async with one_engine() as engine:
        sender = sender_to(BACKEND, {"a": engine})
        assert await sender.init("a") == {}
        assert await sender.start("a") == {}
        assert await sender.abort("a") == {}
        assert (await sender.finish("1.1", engines="a")).keys() == {"a"}
        await require_served({"a": engine}, seed=0, version="initial")
        assert await sync(sender, packed(1), engines={"a"}, version="1.1") == set()
        await require_served({"a": engine}, seed=1, version="1.1")
        await sender.shutdown()


def init_info(port: int, *, meeting_seconds: float = 5.0) -> Info:
    return {
        "init_info": {"address": "127.0.0.1", "port": port},
        "connection": "c" * 16,
        "meeting_seconds": meeting_seconds,
    }


class FailingEngine:
    """An engine of vLLM that fails in one call."""

    def __init__(self, call: str) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*_: Any) -> Any:
            if name == self._call:
                raise RuntimeError("out of memory")

        return call


def receiver_with(engine: FailingEngine, *, name: str = "mine") -> VllmNativeReceiver:
    settings = ReceiverSettings(layout={"w": (2,)}, vllm_engine=lambda asked: {name: engine}[asked])
    return VllmNativeReceiver(settings, engine=name, end_engine=pytest.fail)


UPDATE: Mapping[str, Any] = {
    "names": ["w"],
    "dtype_names": ["float32"],
    "shapes": [[2]],
    "update_info": {"anything": 1},
    "connection": "c" * 16,
    "transfer_seconds": 5.0,
}


@pytest.mark.parametrize("call", ["start_weight_update", "update_weights", "finish_weight_update"])
def test_what_fails_between_start_and_finish_leaves_a_broken_model(call: str) -> None:
    receiver = receiver_with(FailingEngine(call))
    receiver.init(init_info(1))
    receiver.start()
    with pytest.raises(ModelBrokenError, match="out of memory"):
        receiver.update(UPDATE)
        receiver.take()
    with pytest.raises(ModelBrokenError, match="aborted"):
        receiver.start()


def test_an_init_that_fails_leaves_the_model_and_no_connection() -> None:
    receiver = receiver_with(FailingEngine("init_transfer_engine"))
    with pytest.raises(GroupBrokenError, match="out of memory"):
        receiver.init(init_info(1))
    receiver.start()
    with pytest.raises(WeightSyncError, match="must init first"):
        receiver.update(UPDATE)
    with pytest.raises(WeightSyncError, match="nothing to finish"):
        receiver.take()


@pytest.mark.parametrize(
    "told",
    [
        {"nccl_unique_id_b64": "id", "master_address": "127.0.0.1", "master_port": 1},
        {"master_address": "127.0.0.1", "master_port": 1},
        {"nccl_unique_id_b64": None},
    ],
)
def test_vllms_nccl_takes_only_an_id_and_no_address_of_a_store_which_it_would_unpickle(
    told: Mapping[str, Any],
) -> None:
    receiver = receiver_with(FailingEngine(""), name="nccl")
    with pytest.raises(WeightSyncError, match="must get NCCL's id, and no store"):
        receiver.init({**init_info(1), "init_info": told})
    receiver.init({**init_info(1), "init_info": {"nccl_unique_id_b64": "id"}})


CHANGES: list[tuple[Mapping[str, Any], str]] = [
    ({"connection": "d" * 16}, "must init first"),
    ({"connection": ""}, "must init first"),
    ({"dtype_names": ["load"]}, "dtype load cannot travel"),
    ({"shapes": []}, "not as many"),
    ({"names": ["w", "w"], "dtype_names": ["float32"] * 2, "shapes": [[2]] * 2}, "there twice"),
    ({"names": [], "dtype_names": [], "shapes": []}, "aborted"),
    ({"abort": "the sender asked for it"}, "aborted: the sender asked for it"),
    ({"more": 1}, "not understood"),
]


@pytest.mark.parametrize(("change", "sentence"), CHANGES)
def test_an_update_that_is_none_is_refused_and_the_model_is_not_touched(
    change: Mapping[str, Any], sentence: str
) -> None:
    receiver = receiver_with(FailingEngine("start_weight_update"))
    receiver.init(init_info(1))
    receiver.start()
    with pytest.raises(WeightSyncError, match=sentence):
        receiver.update({**UPDATE, **change})
    receiver.start()


@pytest.mark.parametrize("change", [change for change, _ in CHANGES])
def test_a_second_part_that_is_none_leaves_a_broken_model(change: Mapping[str, Any]) -> None:
    receiver = receiver_with(FailingEngine(""))
    receiver.init(init_info(1))
    receiver.start()
    receiver.update(UPDATE)
    receiver.update(UPDATE)
    with pytest.raises(ModelBrokenError, match="aborted"):
        receiver.update({**UPDATE, **change})


def test_without_vllm_there_is_no_receiver() -> None:
    with pytest.raises(WeightSyncError, match="in a worker of vLLM only"):
        BROUGHT.make_receiver(ReceiverSettings(layout={}))


def test_an_engine_that_the_image_does_not_bring_is_named() -> None:
    def unknown(name: str) -> FailingEngine:
        raise ValueError(f"Invalid weight transfer backend: {name}")

    with pytest.raises(WeightSyncError, match=r"rollout image has no .* engine mine, .*vllmEngine"):
        VllmNativeReceiver(
            ReceiverSettings(layout={}, vllm_engine=unknown), engine="mine", end_engine=pytest.fail
        )


def test_it_goes_between_pods_and_every_engine_is_connected_by_itself() -> None:
    assert (VLLM_NATIVE.reach, VLLM_NATIVE.is_collective) == (Reach.NETWORK, False)


def for_run_with(name: str, folder: Path) -> None:
    run = run_config(rollout={"replicas": 1}, weightSync={"backend": "VllmNative", "vllmEngine": name})
    assert VLLM_NATIVE.for_run is not None
    VLLM_NATIVE.for_run(read_trainer_settings(trainer_environment(folder, run)), dict)


def test_a_half_that_the_trainers_image_does_not_bring_is_refused_with_those_that_there_are(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match=r"mine has no trainer's half in the trainer image.*there are nccl,"):
        for_run_with("mine", tmp_path)


def test_a_half_that_wants_to_be_told_what_nobody_knows_is_refused(tmp_path: Path) -> None:
    from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    @dataclass
    class NeedsAService(TrainerInitInfo):
        backend: ClassVar[str] = "service"
        service_url: str

    half = type("Half", (TrainerWeightTransferEngine,), {"init_info_cls": NeedsAService})
    if "service" not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine("service", half)
    with pytest.raises(UserError, match="needs service_url, and gets master_address"):
        for_run_with("service", tmp_path)


def test_the_names_that_a_spec_knows_of_vllms_engines_are_those_that_vllm_registers() -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    ours = {name_in_vllm(backend) for backend in all_backends()}
    assert set(WeightTransferEngineFactory._registry) - ours - {socket_engine.NAME} == set(
        VLLM_TRANSFER_ENGINES
    )
    assert ours.isdisjoint(VLLM_TRANSFER_ENGINES)


def test_what_vllms_nccl_tells_its_engine_has_no_store() -> None:
    """A key that vLLM adds is one that somebody has to think about."""
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    packing = {"packed", "packed_buffer_size_bytes", "packed_num_buffers"}
    store = {"master_address", "master_port"}
    told = {field.name for field in fields(NCCLWeightTransferInitInfo)}
    assert told == packing | store | {"rank_offset", "world_size", "nccl_unique_id_b64"}
    assert {field.name for field in fields(NCCLTrainerInitInfo)} == packing | store | {"rank", "world_size"}


class RememberingChannel(receiver_harness.CallChannel):
    """To an engine that does all it is asked."""

    def __init__(self) -> None:
        self.called: list[str] = []

    async def call(self, verb: str, *arguments: Any) -> None:
        self.called.append(verb)


def connection_of(half: Any, channel: RememberingChannel, *, timeout_seconds: float) -> Any:
    """The trainer's connection to one engine, by this half."""
    from grpo_runtime.weight_sync.vllm_native.sender import VllmNativeConnection

    settings = SenderSettings(Deadlines(timeout_seconds))
    manifest = packed(1).manifest
    return VllmNativeConnection(
        Peer(channel, host="127.0.0.1"), settings, half=half, manifest=lambda: manifest, device=None
    )


def half_that(sends: Callable[[Any], None]) -> Any:
    """The trainer's half of an engine, which meets nobody and reads all weights. Then `sends` goes on."""
    from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

    @dataclass
    class NothingToTell(TrainerInitInfo):
        backend: ClassVar[str] = "reading"

    class ReadingHalf(TrainerWeightTransferEngine[NothingToTell]):
        init_info_cls = NothingToTell

        @classmethod
        def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> "ReadingHalf":
            return cls(client=client, source=source)

        def send_weights(self) -> None:
            for _ in self.source:
                pass
            sends(self.client)

        def shutdown(self) -> None:
            return

    return ReadingHalf


async def test_an_engine_may_take_a_moment_longer_than_a_transfer_may_stand_still_when_it_has_all() -> None:
    timeout_seconds = 4.0

    def answered_late(client: Any) -> None:
        # a transfer may stand still for a quarter of the deadline
        threading.Event().wait(timeout_seconds / 2)

    connection = connection_of(
        half_that(answered_late), RememberingChannel(), timeout_seconds=timeout_seconds
    )
    await connection.init()
    async with asyncio.timeout(GIVE_UP_SECONDS):
        await connection.update(packed(1))
    await connection.shutdown()


async def test_a_half_that_fails_when_it_finishes_is_named_and_the_connection_left() -> None:
    def fail(client: Any) -> None:
        client.finish_weight_update()
        raise RuntimeError("a segment is lost\nand a stack")

    channel = RememberingChannel()
    connection = connection_of(half_that(fail), channel, timeout_seconds=GIVE_UP_SECONDS)
    await connection.init()
    await connection.update(packed(1))
    with pytest.raises(WeightSyncError, match=r"^the trainer's half ReadingHalf .* a segment is lost$"):
        await connection.finish("1.1")
    assert channel.called == ["finish"]
    with pytest.raises(WeightSyncError, match="call init first"):
        await connection.update(packed(2))


async def test_a_library_that_makes_no_id_is_said_at_once_and_no_engine_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from grpo_runtime.weight_sync.vllm_native import trainer_half

    class FailingLibrary:
        def ncclGetUniqueId(self) -> bytes:
            raise RuntimeError("no network interface\nand a stack")

    monkeypatch.setattr(trainer_half, "NCCLLibrary", FailingLibrary)
    channel = RememberingChannel()
    connection = connection_of(trainer_half.NcclTrainer, channel, timeout_seconds=10 * GIVE_UP_SECONDS)
    async with asyncio.timeout(GIVE_UP_SECONDS):
        with pytest.raises(WeightSyncError, match=r"NcclTrainer .* no network interface$"):
            await connection.init()
    assert channel.called == []
    await connection.shutdown()


@pytest.mark.at_once
async def test_an_engine_ends_when_the_trainers_own_weights_fail_in_mid_transfer() -> None:
    """It waits for what does not come, up to its deadline."""
    is_asked = threading.Event()

    def fail() -> None:
        assert is_asked.wait(GIVE_UP_SECONDS)
        raise WeightSyncError("the trainer's weights cannot be read")

    async with one_engine() as engine:
        engine.on_sent = lambda verb: verb == "update" and is_asked.set()
        sender = make_group_sender(BACKEND, {"a": engine}, timeout_seconds=TIMEOUT_SECONDS)
        assert await sender.init("a") == {}
        assert await sender.start("a") == {}
        failures = await sender.update(packed(1, alter=accident(fail)), engines="a")
        assert "cannot be read" in str(failures["a"])
        await sender.shutdown()
        await require_ended(engine)
