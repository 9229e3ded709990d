"""Measures every backend, the floors and the naive way with receivers without vLLM."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import psutil
import torch

from grpo_bench.errors import BenchError
from grpo_runtime.weight_sync.interface import Backend, Reach
from grpo_runtime.weight_sync.registry import DISK, all_backends
from grpo_sync.amounts import BROADCAST, COPY, Amounts, Case, floor_of, goal_for
from grpo_sync.backend_sync import connected
from grpo_sync.disk_folder import backend_of_run, folder_of_weights
from grpo_sync.floors import Floors
from grpo_sync.options import Options
from grpo_sync.parameter_sync import ParameterSync
from grpo_sync.progress import say
from grpo_sync.receivers import RemoteReceiver, started_receivers
from grpo_sync.weights import DTYPES, SyntheticWeights

NAIVE = "naive"
_MAX_NAIVE_MB, _NAIVE_DTYPE = 100, "float32"
_LONG_SECONDS = 1.0
_ENOUGH_SECONDS, _LEAST_ROUNDS = 10.0, 2
_MAX_CAST_MB, _CAST_DTYPE = 500, "bfloat16"


class Sync(Protocol):
    """One way of giving the receivers the weights."""

    async def run(self) -> Amounts:
        """Do it once; the seconds of each phase, and `total`."""
        ...

    async def check(self) -> None:
        """Raises BenchError unless the receivers have the weights."""
        ...


def measure(options: Options) -> list[Case]:
    """All cases without vLLM, one after the other. Raises BenchError when one fails."""
    torch.set_num_threads(1)
    with folder_of_weights() as folder:
        backends = [backend_of_run(backend, folder) for backend in _chosen(options.backends)]
        return asyncio.run(_measure(options, backends))


def num_rounds(size_mb: int) -> int:
    """How many syncs are counted at most: short ones vary more."""
    if size_mb < 10:
        return 10
    return 5 if size_mb < 500 else 3


def _chosen(names: Sequence[str]) -> list[Backend[Any]]:
    """The backends of those names, or else all that reach another process and need no GPU and no run."""
    found = {
        name: found
        for name, found in all_backends().items()
        if found.reach is not Reach.PROCESS
        and not found.needs_gpu
        # one that belongs to a run is measured where the bench brings what it has of it
        and (found.for_run is None or found is DISK)
    }
    if unknown := [name for name in names if name not in found]:
        raise BenchError(f"no backend between processes is called {unknown[0]}; there are {', '.join(found)}")
    return [backend for name, backend in found.items() if not names or name in names]


async def _measure(options: Options, backends: Sequence[Backend[Any]]) -> list[Case]:
    if not options.receivers:
        return []
    cases: list[Case] = []
    say(f"starting {max(options.receivers)} receiver processes")
    async with started_receivers(max(options.receivers)) as receivers:
        floors = Floors(receivers)
        for size_mb in options.sizes:
            for dtype in DTYPES:
                # a cast changes only how weights are prepared: a large model need not travel twice to all
                is_large_cast = dtype == _CAST_DTYPE and size_mb > _MAX_CAST_MB
                numbers = options.receivers[:1] if is_large_cast else options.receivers
                cases += await _measure_model(size_mb, dtype, numbers, backends, floors)
                # what it took goes before the next model comes
                await floors.free()
    return cases


async def _measure_model(
    size_mb: int, dtype: str, numbers: Sequence[int], backends: Sequence[Backend[Any]], floors: Floors
) -> list[Case]:
    cases: list[Case] = []
    fitting = _fitting(size_mb, numbers)
    if not fitting:
        return cases
    weights = SyntheticWeights(size_mb * 1_000_000, dtype=dtype)
    floors.make_room(weights.num_bytes)
    for number in fitting:
        members = floors.receivers[:number]
        await _make_room(members, weights)
        ways = _ways(weights, members, backends=backends, floors=floors)
        if size_mb <= _MAX_NAIVE_MB and dtype == _NAIVE_DTYPE:
            ways.append(_naive(weights, members, floors=floors))
        for way in ways:
            cases.append(await way.measure(size_mb=size_mb, dtype=dtype))
    return cases


def _fitting(size_mb: int, numbers: Sequence[int]) -> list[int]:
    """The numbers of receivers for which there is memory, and a sentence about the others: without memory the
    kernel would end a process, perhaps another's."""
    free = psutil.virtual_memory().available / 1e9
    fitting = []
    for number in numbers:
        # here the weights in float32, the floors', two packed copies; in a receiver the model and what came
        needed = size_mb / 1e3 * (6 + 2 * number)
        if needed <= free:
            fitting.append(number)
        else:
            say(f"{size_mb} MB to {number}: left out, {free:.1f} of {needed:.1f} GB of memory are free")
    return fitting


async def _make_room(receivers: Sequence[RemoteReceiver], weights: SyntheticWeights) -> None:
    room = {"num_bytes": weights.num_bytes, "num_tensors": len(weights.layout())}
    await asyncio.gather(*(receiver.call("memory", **room) for receiver in receivers))


class _Way:
    """One way, and what is measured of it."""

    def __init__(
        self,
        name: str,
        opened: AbstractAsyncContextManager[Sync],
        *,
        weights: SyntheticWeights,
        num_receivers: int,
        floors: Floors,
        floor: str,
        goal: float | None,
    ) -> None:
        self._name = name
        self._opened = opened
        self._weights = weights
        self._num_receivers = num_receivers
        self._floors = floors
        self._floor = floor
        self._goal = goal

    async def measure(self, *, size_mb: int, dtype: str) -> Case:
        """A round to warm up, and those that count."""
        number = num_rounds(size_mb)
        title = f"{size_mb} MB in {dtype} to {self._num_receivers}: {self._name}"
        say(f"{title}, up to {number} rounds after one to warm up")
        async with self._opened as sync:
            first = await self._round(sync)
            await sync.check()
            rounds = []
            began = time.monotonic()
            for index in range(number):
                if index >= _LEAST_ROUNDS and time.monotonic() - began > _ENOUGH_SECONDS:
                    break
                rounds.append(await self._round(sync))
                if rounds[-1]["total"] > _LONG_SECONDS:
                    taken = rounds[-1]["total"], rounds[-1][self._floor]
                    say(f"  round {index + 1} of {number}: {taken[0]:.2f} s, its floor {taken[1]:.2f} s")
        return Case(
            size_mb=size_mb,
            dtype=dtype,
            num_receivers=self._num_receivers,
            way=self._name,
            num_bytes=self._weights.num_bytes,
            num_tensors=len(self._weights.layout()),
            floor=self._floor,
            goal=self._goal,
            first=first,
            rounds=rounds,
        )

    async def _round(self, sync: Sync) -> Mapping[str, float]:
        """The floors and the sync, right after each other: the speed of a machine changes."""
        copy = await self._floors.copy_seconds()
        broadcast = await self._floors.broadcast_seconds(self._num_receivers)
        began = time.monotonic()
        amounts = await sync.run()
        return {**amounts, COPY: copy, BROADCAST: broadcast, "wall": time.monotonic() - began}


def _ways(
    weights: SyntheticWeights,
    receivers: Sequence[RemoteReceiver],
    *,
    backends: Sequence[Backend[Any]],
    floors: Floors,
) -> list[_Way]:
    number = len(receivers)
    ways = []
    for backend in backends:
        floor = floor_of(number, is_network=backend.reach is Reach.NETWORK)
        ways.append(
            _Way(
                backend.name,
                connected(backend, weights, receivers),
                weights=weights,
                num_receivers=number,
                floors=floors,
                floor=floor,
                goal=goal_for(number),
            )
        )
    return ways


def _naive(weights: SyntheticWeights, receivers: Sequence[RemoteReceiver], *, floors: Floors) -> _Way:
    return _Way(
        NAIVE,
        _opened(ParameterSync(weights, receivers, floors=floors)),
        weights=weights,
        num_receivers=len(receivers),
        floors=floors,
        floor=BROADCAST,
        goal=None,
    )


@asynccontextmanager
async def _opened(sync: Sync) -> AsyncIterator[Sync]:
    yield sync
