"""NCCL from one GPU to another, and what becomes of a hung engine."""

import asyncio
import statistics
import time
from collections.abc import Mapping
from typing import Any

from grpo_runtime.weight_sync.deadlines import ANSWER_SECONDS, Deadlines
from grpo_runtime.weight_sync.interface import Failures, Peer, SenderSettings, WeightSender
from grpo_runtime.weight_sync.registry import find_backend
from grpo_sync.backend_sync import connected
from grpo_sync.broadcast import HOST
from grpo_sync.receivers import RemoteReceiver, started_receivers
from grpo_sync.weights import SyntheticWeights

_BACKEND = find_backend("nccl")
_TRAINER, _ENGINE = "cuda:0", "cuda:1"
_NAME = "engine"
_TIMEOUT_SECONDS = 60.0


def run(*, num_bytes: int, num_rounds: int) -> int:
    """Returns 0 when everything was as it must be."""
    weights = SyntheticWeights(num_bytes, dtype="bfloat16", device=_TRAINER)
    seconds = asyncio.run(_transfers(weights, num_rounds))
    rate = weights.num_bytes / statistics.median(seconds[1:] or seconds) / 1e9
    print(f"1. {num_rounds} transfers of {weights.num_bytes / 1e9:.2f} GB arrived: {rate:.1f} GB/s")
    return asyncio.run(_losses(weights))


async def _transfers(weights: SyntheticWeights, num_rounds: int) -> list[float]:
    async with started_receivers(1) as receivers:
        await _make_room(receivers[0], weights)
        async with connected(_BACKEND, weights, receivers, device=_ENGINE) as sync:
            seconds = [(await sync.run())["transfer"] for _ in range(num_rounds)]
            await sync.check()
    return seconds


async def _losses(weights: SyntheticWeights) -> int:
    async with started_receivers(2) as receivers:
        layout = {spec.name: list(spec.shape) for spec in weights.layout()}
        for receiver in receivers:
            await _make_room(receiver, weights)
            await receiver.call("make", backend=_BACKEND.name, layout=layout, device=_ENGINE)
        hung, new = receivers
        sender = _sender(hung)
        _require_none(await sender.init([_NAME]))
        _require_none(await sender.start([_NAME]))
        hung.freeze()
        start = time.monotonic()
        failures = await sender.update(_BACKEND.prepare(weights), engines=[_NAME])
        seconds, allowed = time.monotonic() - start, _TIMEOUT_SECONDS * 0.25 + 2 * ANSWER_SECONDS
        await sender.shutdown()
        if failures.keys() != {_NAME} or seconds > allowed:
            print(f"2. FAILED: {dict(failures)} after {seconds:.1f} s")
            return 1
        print(f"2. a hung engine is named after {seconds:.1f} s: {failures[_NAME]}")
        sender = _sender(new)
        _require_none(await sender.init([_NAME]))
        _require_none(await sender.start([_NAME]))
        _require_none(await sender.update(_BACKEND.prepare(weights), engines=[_NAME]))
        _require_none(await sender.finish("1.1", engines=[_NAME]))
        await sender.shutdown()
        print("3. a new engine has the weights")
    return 0


def _sender(receiver: RemoteReceiver) -> WeightSender[Any]:
    peers: Mapping[str, Peer] = {_NAME: Peer(receiver, host=HOST)}
    return _BACKEND.make_sender(peers, SenderSettings(Deadlines(_TIMEOUT_SECONDS)))


async def _make_room(receiver: RemoteReceiver, weights: SyntheticWeights) -> None:
    num_tensors = len(weights.layout())
    await receiver.call("memory", num_bytes=weights.num_bytes, num_tensors=num_tensors, device=_ENGINE)


def _require_none(failures: Failures) -> None:
    for error in failures.values():
        raise error
