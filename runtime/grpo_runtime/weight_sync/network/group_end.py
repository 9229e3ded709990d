"""The trainer's end of one group: its place, and the thread that blocks in it."""

import asyncio
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch.distributed import Store

from grpo_runtime.weight_sync.interface import GroupBrokenError, OverLimitError, WeightSyncError
from grpo_runtime.weight_sync.network.group import Communicator, Join, broadcast_all
from grpo_runtime.weight_sync.network.meeting import MemberPlace
from grpo_runtime.weight_sync.together import read_outcome

_T = TypeVar("_T")


class GroupEnd:
    """A group of these engines, which no other has the key of."""

    def __init__(self, engines: frozenset[str]) -> None:
        self.engines = engines
        self.key = secrets.token_urlsafe(24)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weight-sender")
        self._invitation: Future[bytes] = Future()
        self._communicator: Communicator | None = None
        self._is_left = False
        self._leaving = threading.Lock()

    @property
    def is_joined(self) -> bool:
        """Whether the trainer has met the engines."""
        return self._communicator is not None

    def in_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """What `work` gives, in the thread of this group."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def invitation(self, joining: asyncio.Future[None]) -> bytes:
        """NCCL's id of the group, if it has one, once the engines may come. `joining` is the trainer's
        `join`: raises what that fails with before."""
        joining.add_done_callback(read_outcome)
        invited = asyncio.wrap_future(self._invitation)
        either: set[asyncio.Future[Any]] = {invited, joining}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if invited.done():
                return invited.result()
            await joining
        finally:
            # the trainer does not wait for engines that are not called
            invited.cancel()
        raise WeightSyncError("the trainer is in the group before the engines may come")

    def join(self, join: Join, store: Store, place: MemberPlace, *, own_address: str) -> None:
        """Meet the engines. Blocks."""
        communicator = join(store, place, own_address=own_address, invite=self._invitation.set_result)
        with self._leaving:
            if not self._is_left:
                self._communicator = communicator
                return
        communicator.close()
        raise GroupBrokenError("it was given up before all were there")

    def send(
        self, buffers: Iterable[torch.Tensor], *, stall_seconds: float, limit_seconds: float = math.inf
    ) -> None:
        """Give all buffers to the engines. Blocks, and gives up what does not go on for `stall_seconds`.
        Raises OverLimitError between two buffers once it has taken longer than `limit_seconds`."""
        if self._communicator is None:
            raise GroupBrokenError("the trainer is in no group")
        ends_at = time.monotonic() + limit_seconds
        for _ in broadcast_all(self._communicator, buffers, timeout_seconds=stall_seconds):
            if time.monotonic() > ends_at:
                raise OverLimitError(f"not done within {limit_seconds:g} s")

    def leave(self) -> None:
        """Let go of the group. A thread that still works in it ends once nothing has gone on for its stall
        time."""
        with self._leaving:
            self._is_left = True
            communicator, self._communicator = self._communicator, None
        if communicator is not None:
            communicator.close()
        self._thread.shutdown(wait=False, cancel_futures=True)
