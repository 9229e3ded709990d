"""The naive way, for comparison: each parameter in a message and a broadcast of its own."""

import asyncio
import time
from collections.abc import Sequence

import torch

from grpo_sync.amounts import Amounts
from grpo_sync.broadcast import broadcast
from grpo_sync.floors import Floors
from grpo_sync.receivers import RemoteReceiver
from grpo_sync.weights import SyntheticWeights


class ParameterSync:
    """Sends parameter by parameter. Nothing is checked, and nothing is loaded."""

    def __init__(
        self, weights: SyntheticWeights, receivers: Sequence[RemoteReceiver], *, floors: Floors
    ) -> None:
        self._weights = weights
        self._receivers = receivers
        self._floors = floors

    async def run(self) -> Amounts:
        """Seconds of all parameters together."""
        size = len(self._receivers) + 1
        group = await self._floors.group(len(self._receivers))
        began = time.monotonic()
        for _, tensor in self._weights.tensors():
            dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
            for receiver in self._receivers:
                await receiver.ask("parameter", size=size, dtype=dtype, shape=shape)
            await asyncio.to_thread(broadcast, group, tensor.view(-1).view(torch.uint8))
            await asyncio.gather(*(receiver.answer() for receiver in self._receivers))
        return {"total": time.monotonic() - began}

    async def check(self) -> None:
        """There is nothing to check."""
