"""A receiver without vLLM, and channels to it: in this process, and over the pipes of another."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

# this file is also run as a script, without the tests' own path
sys.path.append(str(Path(__file__).parents[1]))

import socket_engine
from backends import backend_called, device_of
from stand_in_vllm_nccl import NcclEngineWithoutVllm
from weight_sources import FixedWeights

from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.interface import (
    ControlChannel,
    DirectLoad,
    Failures,
    Info,
    ModelBrokenError,
    Peer,
    ReceiverSettings,
    SenderSettings,
    WeightSender,
    WeightSyncError,
)
from grpo_runtime.weight_sync.source import WeightSource
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.memory import MEMORY_TO_SHARE

BUFFER_BYTES = 4096
ENGINE = "engine"
MakeSender = Callable[..., "OneEngineSender"]
Alter = Callable[[Iterator[torch.Tensor]], Iterator[torch.Tensor]]
"""From the buffers of a copy to those that are sent."""


def some_weights(seed: int) -> dict[str, torch.Tensor]:
    """Every kind of tensor that travels: dtypes, a scalar, an empty one, one larger than a buffer."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "embedding": torch.randn(97, 33, generator=generator),
        "scalar": torch.randn((), generator=generator),
        "empty": torch.zeros(0, 7),
        "half": torch.randn(5, 3, generator=generator).to(torch.bfloat16),
        "counts": torch.randint(0, 2**40, (3,), generator=generator),
        "not-finite": torch.tensor([float("nan"), float("inf"), -0.0]),
        "transposed": torch.randn(50, 40, generator=generator).t(),
    }


def packed(seed: int, *, alter: Alter = iter, buffer_bytes: int = BUFFER_BYTES) -> HostCopy:
    """`some_weights` in many small buffers, of which others may be sent."""
    return AlteredCopy(FixedWeights(some_weights(seed).items()), alter=alter, buffer_bytes=buffer_bytes)


def prepare(backend: str, weights: dict[str, torch.Tensor]) -> Any:
    """`weights` as senders of the backend take them."""
    return backend_called(backend).prepare(FixedWeights(weights.items()))


def prepared(backend: str, seed: int) -> Any:
    """`some_weights` as senders of the backend take them."""
    return prepare(backend, some_weights(seed))


class LongMeetings(Deadlines):
    """Those of engines that may take their time to meet, as short as the others may be."""

    def meeting_seconds(self) -> float:
        return 30.0


def make_group_sender(
    backend: str,
    channels: Mapping[str, ControlChannel],
    *,
    timeout_seconds: float,
    deadlines: Callable[[float], Deadlines] = Deadlines,
) -> WeightSender[Any]:
    """A sender to several engines of this machine."""
    peers = {
        name: Peer(channel, host="127.0.0.1", num_workers=getattr(channel, "num_workers", 1))
        for name, channel in channels.items()
    }
    return backend_called(backend).make_sender(peers, SenderSettings(deadlines(timeout_seconds)))


class OneEngineSender:
    """A sender to one engine. Its verbs raise what the engine fails with."""

    def __init__(self, backend: str, channel: ControlChannel, *, timeout_seconds: float) -> None:
        self._sender = make_group_sender(
            backend, {ENGINE: channel}, timeout_seconds=timeout_seconds, deadlines=LongMeetings
        )

    async def init(self) -> None:
        _check(await self._sender.init([ENGINE]))

    async def start(self) -> None:
        _check(await self._sender.start([ENGINE]))

    async def update(self, weights: Any) -> None:
        _check(await self._sender.update(weights, engines=[ENGINE]))

    async def finish(self, version: str) -> None:
        _check(await self._sender.finish(version, engines=[ENGINE]))

    async def abort(self) -> None:
        _check(await self._sender.abort([ENGINE]))

    async def shutdown(self) -> None:
        await self._sender.shutdown()


def _check(failures: Failures) -> None:
    for error in failures.values():
        raise error


async def sync(sender: OneEngineSender, weights: Any, *, version: str) -> None:
    """All of a sync after init."""
    await sender.start()
    await sender.update(weights)
    await sender.finish(version)


class Worker:
    """A worker of an engine. `weights` and `version` are what it would serve.

    It keeps vLLM's order: one update at a time, which ends when it is finished or anything is wrong with it.
    `has_ended` says that it has ended its process, as vLLM's does when its model is broken.
    """

    def __init__(
        self,
        backend: str,
        *,
        optional: frozenset[str] = frozenset(),
        rank: int = 0,
        size: int = 1,
        has_room: bool = True,
        layout: Mapping[str, tuple[int, ...]] | None = None,
        place: int = 0,
    ) -> None:
        """`place` as `device_of` has it."""
        self.weights = (
            some_weights(0)
            if layout is None
            else {name: torch.zeros(tuple(shape)) for name, shape in layout.items()}
        )
        self.version = "initial"
        self.has_ended = False
        self.has_room = has_room
        self._is_open = False
        shapes = {name: tuple(tensor.shape) for name, tensor in self.weights.items()}
        found = backend_called(backend)
        device = device_of(found, place=place)
        settings = ReceiverSettings(
            layout=shapes,
            optional=optional,
            device=device,
            worker=rank,
            direct_load=DirectLoad(lambda num_bytes: self.has_room or num_bytes == 0, self._load),
            vllm_engine=lambda name: (
                socket_engine.EngineWithoutVllm(self)
                if name == socket_engine.NAME
                else NcclEngineWithoutVllm(self, worker=rank, device=device)
            ),
        )
        self.end = found.make_receiver(settings)

    def init(self, info: Info) -> None:
        with self._ending_with_a_broken_model():
            self.end.init(info)

    def start(self) -> None:
        if self._is_open:
            raise WeightSyncError("a weight update is already active")
        with self._ending_with_a_broken_model():
            self.end.start()
        self._is_open = True

    def update(self, info: Info) -> None:
        self._require_open()
        try:
            with self._ending_with_a_broken_model():
                self.end.update(info)
        except BaseException:
            self._is_open = False
            raise

    def finish(self, version: str) -> None:
        self._require_open()
        with self._ending_with_a_broken_model():
            weights = self.end.take()
        if weights is not None:
            self._load(weights)
        self.version = version
        self._is_open = False

    def shutdown(self) -> None:
        self.end.shutdown()

    def _load(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.weights = {}
        for name, tensor in weights:
            self.weights[name] = tensor.clone()

    @contextmanager
    def _ending_with_a_broken_model(self) -> Iterator[None]:
        try:
            yield
        except ModelBrokenError as error:
            self.has_ended = True
            raise WeightSyncError(f"the connection was closed: {error}") from error

    def _require_open(self) -> None:
        if not self._is_open:
            raise WeightSyncError("there is nothing to finish: no weight update is active")


class CallChannel:
    """A `ControlChannel` whose verbs are all `call`s."""

    async def init(self, info: Info) -> None:
        await self.call("init", dict(info))

    async def start(self) -> None:
        await self.call("start")

    async def update(self, info: Info) -> None:
        await self.call("update", dict(info))

    async def finish(self, version: str) -> None:
        await self.call("finish", version)

    async def shutdown(self) -> None:
        await self.call("shutdown")

    async def call(self, verb: str, *arguments: Any) -> Any:
        """Do a verb at the engine. Raises WeightSyncError."""
        raise NotImplementedError


class Receiver(CallChannel):
    """An engine of one worker, in this process. `weights` and `version` are what it would serve."""

    def __init__(
        self,
        backend: str,
        *,
        optional: frozenset[str] = frozenset(),
        has_room: bool = True,
        layout: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._worker = Worker(backend, optional=optional, has_room=has_room, layout=layout)
        self.end = self._worker.end
        # as an engine's worker, which carries out one call after the other
        self._thread = ThreadPoolExecutor(max_workers=1)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return self._worker.weights

    @property
    def version(self) -> str:
        return self._worker.version

    @property
    def has_ended(self) -> bool:
        return self._worker.has_ended

    @property
    def has_room(self) -> bool:
        """Whether it has memory to stage weights."""
        return self._worker.has_room

    @has_room.setter
    def has_room(self, has_room: bool) -> None:
        self._worker.has_room = has_room

    async def call(self, verb: str, *arguments: Any) -> None:
        # as it comes over a wire
        given = json.loads(json.dumps(arguments))
        await asyncio.get_running_loop().run_in_executor(self._thread, getattr(self._worker, verb), *given)

    def serves(self, wanted: dict[str, torch.Tensor]) -> bool:
        """Whether the weights are `wanted` to the last bit."""
        return all(
            self.weights[name].dtype == tensor.dtype
            and self.weights[name].shape == tensor.shape
            and self.weights[name].contiguous().reshape(-1).view(torch.uint8).tolist()
            == tensor.contiguous().reshape(-1).view(torch.uint8).tolist()
            for name, tensor in wanted.items()
        )


class AlteredCopy(HostCopy):
    """A copy of which `alter` decides what is sent."""

    def __init__(self, source: WeightSource, *, alter: Alter, buffer_bytes: int) -> None:
        self._alter = alter
        super().__init__(source, buffer_bytes=buffer_bytes, pool=MEMORY_TO_SHARE)

    def buffers(self, *, stall_seconds: float | None = None) -> Iterator[torch.Tensor]:
        return self._alter(super().buffers(stall_seconds=stall_seconds))


def accident(happens: Callable[[], object], *, before: int = 2) -> Alter:
    """Something happens, once, when the first `before` buffers are on their way."""
    left = [happens]

    def alter(buffers: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
        for index, buffer in enumerate(buffers):
            if index == before and left:
                left.pop()()
            yield buffer

    return alter


def flip_a_bit(buffers: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """On its way, one bit of the third buffer becomes another."""
    for index, buffer in enumerate(buffers):
        if index == 2:
            buffer[7] ^= 1
        yield buffer


def stall(until: threading.Event) -> Callable[[], object]:
    """An accident: the sender hangs until the event."""
    return lambda: until.wait(60)


def kill_self() -> None:
    """An accident: the sender's process is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


class PipeChannel(CallChannel):
    """The sender's end of a channel to another process: one JSON line a verb, one line for its outcome."""

    async def call(self, verb: str, *arguments: Any) -> None:
        print(json.dumps([verb, *arguments]), flush=True)
        outcome = json.loads(await asyncio.to_thread(sys.stdin.readline))
        if outcome:
            raise WeightSyncError.told_in(outcome)


async def _break_off_in_mid_transfer(backend: str, *, by: Callable[[], object]) -> None:
    sender = OneEngineSender(backend, PipeChannel(), timeout_seconds=10.0)
    await sender.init()
    await sender.start()
    await sender.update(packed(1, alter=accident(by)))


if __name__ == "__main__":
    # it kills itself, maybe before the engine knows of the transfer, or hangs until somebody does
    accidents = {"killed": kill_self, "stalled": stall(threading.Event())}
    backend_name, accident_name = (*sys.argv[1:], "killed")[:2]
    asyncio.run(_break_off_in_mid_transfer(backend_name, by=accidents[accident_name]))
