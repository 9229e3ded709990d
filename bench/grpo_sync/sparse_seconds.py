"""How long a sync takes that sends what changed, beside one that sends all: to receivers without vLLM.

It is a process of its own, in the network of which it measures: `python -m grpo_sync.sparse_seconds BYTES
SHARE RECEIVERS`. It prints the seconds of each sync as JSON.
"""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grpo_runtime.weight_sync.interface import Backend
from grpo_runtime.weight_sync.registry import GLOO
from grpo_runtime.weight_sync.source import TensorSpec
from grpo_runtime.weight_sync.sparse.sender import sparse_backend
from grpo_sync.amounts import Amounts
from grpo_sync.backend_sync import connected
from grpo_sync.model_shape import shape_of
from grpo_sync.progress import say
from grpo_sync.receivers import RemoteReceiver, started_receivers

_NEVER = 10**9
_PAIRS, _SYNCS = 2, 3
"""How often both ways are measured one after the other, and how many syncs of each then count."""


class ChangingWeights:
    """A `WeightSource` in bfloat16, of which each step changes the last bit of a share."""

    def __init__(self, num_bytes: int) -> None:
        self._shape = shape_of(num_bytes // 2)
        self._generator = torch.Generator().manual_seed(1)
        values = torch.randn(self._shape.num_parameters, generator=self._generator) * 0.02
        self._flat = values.to(torch.bfloat16)

    @property
    def num_bytes(self) -> int:
        """Of all weights."""
        return self._flat.nbytes

    @property
    def num_tensors(self) -> int:
        """In which they are."""
        return len(self._shape.tensors())

    def change(self, share: float) -> None:
        """Make one step."""
        count = int(share * len(self._flat))
        chosen = torch.randint(0, len(self._flat), (count,), generator=self._generator)
        self._flat.view(torch.int16)[chosen] ^= 1

    def layout(self) -> tuple[TensorSpec, ...]:
        """See `WeightSource`."""
        return tuple(TensorSpec(name, shape, torch.bfloat16) for name, shape in self._shape.tensors().items())

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See `WeightSource`."""
        start = 0
        for name, shape in self._shape.tensors().items():
            end = start + torch.Size(shape).numel()
            yield name, self._flat[start:end].view(shape)
            start = end


@dataclass(frozen=True)
class SyncSeconds:
    """Seconds of single syncs, without loading into a model."""

    whole: list[float]
    sparse: list[float]


async def measure(num_bytes: int, *, share: float, num_receivers: int) -> SyncSeconds:
    """Both ways in turn, over whatever network this process is in."""
    weights = ChangingWeights(num_bytes)
    found = SyncSeconds([], [])
    async with started_receivers(num_receivers) as receivers:
        for receiver in receivers:
            await receiver.call("memory", num_bytes=weights.num_bytes, num_tensors=weights.num_tensors)
        for _ in range(_PAIRS):
            found.whole.extend(await _syncs(weights, receivers, share=share, is_sparse=False))
            found.sparse.extend(await _syncs(weights, receivers, share=share, is_sparse=True))
    return found


async def _syncs(
    weights: ChangingWeights, receivers: Sequence[RemoteReceiver], *, share: float, is_sparse: bool
) -> list[float]:
    """The seconds of syncs after the first one, which connects and sends all weights in both ways."""
    backend: Backend[Any] = GLOO
    if is_sparse:
        backend = sparse_backend(GLOO, full_every=_NEVER)
    async with connected(backend, weights, receivers) as sync:
        amounts: list[Amounts] = []
        for _ in range(_SYNCS + 1):
            weights.change(share)
            amounts.append(await sync.run())
            await sync.check()
            say(f"    {'what changed' if is_sparse else 'all weights'}: {amounts[-1]['total']:.2f} s")
    return [found["total"] - found["init"] for found in amounts[1:]]


if __name__ == "__main__":
    torch.set_num_threads(1)
    number_of_bytes, of_all, number = sys.argv[1:]
    seconds = asyncio.run(measure(int(number_of_bytes), share=float(of_all), num_receivers=int(number)))
    print(json.dumps({"whole": seconds.whole, "sparse": seconds.sparse}))
