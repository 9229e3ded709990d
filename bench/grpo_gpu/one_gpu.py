"""GB/s of packing, of the tag and of IPC, beside those of plain copies."""

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from grpo_runtime.weight_sync.registry import find_backend
from grpo_runtime.weight_sync.stream.host_copy import device_copy
from grpo_runtime.weight_sync.stream.manifest import LARGEST_BUFFER_BYTES
from grpo_runtime.weight_sync.stream.memory import device_of_rank, registered_memory
from grpo_runtime.weight_sync.tag import RowDigest
from grpo_sync.backend_sync import connected
from grpo_sync.receivers import started_receivers
from grpo_sync.weights import SyntheticWeights

_DEVICE = "cuda:0"
_DTYPE = "bfloat16"


def measure(*, num_bytes: int, num_rounds: int, json_file: Path | None) -> int:
    """Measure, print a table, and append to the file. Returns 0."""
    weights = SyntheticWeights(num_bytes, dtype=_DTYPE, device=_DEVICE)
    ways = {
        "copy": _copy(weights),
        "host copy": _host_copy(weights),
        "cast": lambda: [tensor for _, tensor in weights.tensors()],
        "tag": _tag(weights),
        "pack": lambda: _pack(weights),
    }
    rates = {name: _rate(weights.num_bytes, way, num_rounds) for name, way in ways.items()}
    seconds = asyncio.run(_ipc(weights, num_rounds))
    rates["ipc"] = weights.num_bytes / statistics.median(seconds[1:]) / 1e9
    name = torch.cuda.get_device_name(0)
    print(f"{weights.num_bytes / 1e9:.2f} GB of {_DTYPE} on {name}, torch {torch.__version__}")
    for way, rate in rates.items():
        print(f"  {way:10} {rate:8.1f} GB/s  {rate / rates['copy']:5.2f} of copy")
    if json_file is not None:
        line = {"bench": "gpu/sync", "gpu": name, "num_bytes": weights.num_bytes, "gb_per_second": rates}
        with json_file.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return 0


def _rate(num_bytes: int, way: Callable[[], object], num_rounds: int) -> float:
    seconds = []
    for _ in range(num_rounds):
        torch.cuda.synchronize()
        start = time.monotonic()
        way()
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - start)
    return num_bytes / statistics.median(seconds[1:] or seconds) / 1e9


def _copy(weights: SyntheticWeights) -> Callable[[], object]:
    source, target = (torch.empty(weights.num_bytes, dtype=torch.uint8, device=_DEVICE) for _ in range(2))
    return lambda: target.copy_(source)


def _host_copy(weights: SyntheticWeights) -> Callable[[], object]:
    source = torch.empty(weights.num_bytes, dtype=torch.uint8, device=_DEVICE)
    target = registered_memory(weights.num_bytes).stream
    return lambda: target.copy_(source, non_blocking=True)


def _tag(weights: SyntheticWeights) -> Callable[[], object]:
    packed = torch.zeros(weights.num_bytes, dtype=torch.uint8, device=_DEVICE)

    def tag() -> bytes:
        digest = RowDigest(bytes(32), ())
        for buffer in packed.split(LARGEST_BUFFER_BYTES):
            digest.update(buffer)
        return digest.tag()

    return tag


def _pack(weights: SyntheticWeights) -> None:
    copy = device_copy(weights, device_of_rank())
    # as a sender that keeps up
    for _ in copy.buffers():
        pass
    copy.wait_until_read()


async def _ipc(weights: SyntheticWeights, num_rounds: int) -> list[float]:
    """Seconds of each transfer. Raises BenchError when other weights have arrived."""
    async with started_receivers(1) as receivers:
        num_tensors = len(weights.layout())
        await receivers[0].call(
            "memory", num_bytes=weights.num_bytes, num_tensors=num_tensors, device=_DEVICE
        )
        async with connected(find_backend("ipc"), weights, receivers, device=_DEVICE) as sync:
            seconds = [(await sync.run())["transfer"] for _ in range(num_rounds + 1)]
            await sync.check()
    return seconds
