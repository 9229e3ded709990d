"""What no sync can be faster than on this machine: a copy of the bytes, and a raw gloo broadcast of them."""

import asyncio
import time
from collections.abc import Sequence

import torch

from grpo_sync.broadcast import SENDER, broadcast, host_store, join
from grpo_sync.receivers import RemoteReceiver


class Floors:
    """Measures the floors for a number of bytes, in warm memory."""

    def __init__(self, receivers: Sequence[RemoteReceiver]) -> None:
        self.receivers = receivers
        self._store = host_store()
        self._groups: dict[int, torch.distributed.ProcessGroupGloo] = {}
        self._from = torch.zeros(0, dtype=torch.uint8)
        self._to = torch.zeros(0, dtype=torch.uint8)

    async def free(self) -> None:
        """Let go of all memory for weights, here and in the receivers."""
        self._from = self._to = torch.zeros(0, dtype=torch.uint8)
        await asyncio.gather(*(found.call("memory", num_bytes=0, num_tensors=0) for found in self.receivers))

    def make_room(self, num_bytes: int) -> None:
        """Make warm memory for that many bytes."""
        self._from = torch.ones(num_bytes, dtype=torch.uint8)
        self._to = torch.zeros(num_bytes, dtype=torch.uint8)

    async def group(self, num_receivers: int) -> torch.distributed.ProcessGroupGloo:
        """The gloo group with the first receivers."""
        size = num_receivers + 1
        if size not in self._groups:
            joining = asyncio.to_thread(join, self._store, rank=SENDER, size=size)
            members = self.receivers[:num_receivers]
            asked = (
                member.call("join", port=self._store.port, rank=rank, size=size)
                for rank, member in enumerate(members, start=1)
            )
            self._groups[size], *_ = await asyncio.gather(joining, *asked)
        return self._groups[size]

    async def copy_seconds(self) -> float:
        """A copy from memory to memory in this process, by one thread."""

        def copy() -> float:
            began = time.monotonic()
            self._to.copy_(self._from)
            return time.monotonic() - began

        return await asyncio.to_thread(copy)

    async def broadcast_seconds(self, num_receivers: int) -> float:
        """A broadcast to the first receivers, which wait for it: from its start until the last has all."""
        group, members = await self.group(num_receivers), self.receivers[:num_receivers]
        # all processes of a machine share this clock
        size, num_bytes = num_receivers + 1, len(self._from)
        await asyncio.gather(
            *(member.call("broadcast", size=size, num_bytes=num_bytes) for member in members)
        )

        def send() -> tuple[float, float]:
            began = time.monotonic()
            broadcast(group, self._from)
            return began, time.monotonic()

        began, ended = await asyncio.to_thread(send)
        answers = await asyncio.gather(*(member.answer() for member in members))
        return max(ended, *(answer["ended"] for answer in answers)) - began
