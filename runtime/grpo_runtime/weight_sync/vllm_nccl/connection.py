"""The trainer's end for vLLM's own nccl engines: a group with each of them, of torch's NCCL and vLLM's.

Both are plain NCCL. Torch's rank 0 makes NCCL's id, which goes to the engine on the authenticated control
channel. vLLM's communicator then sums one float over all members before anything else, and so does this end.
There is no group of all engines: vLLM's cannot leave a group that has lost a member, so one lost engine would
end all others.
"""

import asyncio
import base64
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch
from torch.distributed import AllreduceOptions

from grpo_runtime.process.background import in_thread
from grpo_runtime.weight_sync.interface import GroupBrokenError, Peer, SenderSettings, WeightSyncError
from grpo_runtime.weight_sync.network.group import broadcast_all
from grpo_runtime.weight_sync.network.meeting import MemberPlace
from grpo_runtime.weight_sync.network.nccl import (
    TORCH_SECONDS,
    Connect,
    LibraryWork,
    TorchNccl,
    id_while_meeting,
)
from grpo_runtime.weight_sync.network.watchdog import Watchdog
from grpo_runtime.weight_sync.stream.device import Device
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.reading import complete_tensors
from grpo_runtime.weight_sync.together import act_together, read_outcome
from grpo_runtime.weight_sync.vllm_nccl.wire import CHUNK_BYTES, InitMessage, UpdateMessage, packed_chunks

_T = TypeVar("_T")


class TorchNcclToVllm(TorchNccl):
    """Rank 0 of a group whose others are vLLM's; see `LibraryGroup`."""

    def _use_first(self) -> None:
        """The first use, which waits for all members, is the one that vLLM's begin with."""
        options = AllreduceOptions()
        options.timeout = timedelta(seconds=TORCH_SECONDS)
        self._group.allreduce([torch.zeros(1, device=self._device.device)], options).wait()


class VllmNcclConnection:
    """The trainer's end of the connection to one engine; see `Connection`."""

    def __init__(
        self,
        peer: Peer,
        settings: SenderSettings,
        *,
        connect: Connect,
        device: Device,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.channel = peer.channel
        self._size = 1 + peer.num_workers
        self._deadlines = settings.deadlines
        self._connect = connect
        self._device = device
        self._chunk_bytes = chunk_bytes
        self._key = ""
        self._group: _Group | None = None
        self._leaving = threading.Lock()
        # one may still be in the group that was left
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="weight-sender")

    async def init(self) -> None:
        """Meet all workers of the engine, in a new group. A meeting that fails costs the engine a restart, so
        none is given less time because an earlier one was quick: the deadlines do not learn from it."""
        self._leave()
        self._key = secrets.token_urlsafe(24)
        with self._leaving_what_breaks():
            limit = self._deadlines.meeting_seconds()
            place = MemberPlace(self._key, rank=0, size=self._size, meeting_seconds=limit)
            group = await self._in_thread(partial(self._enter, place))
            ends_at = time.monotonic() + limit
            met = group.begin_to_meet(timeout_seconds=limit)
            nccl_id = await self._in_thread(partial(group.id_while_meeting, met, ends_at=ends_at))
            meeting = asyncio.wrap_future(met)
            meeting.add_done_callback(read_outcome)
            message = InitMessage(
                nccl_unique_id_b64=base64.b64encode(nccl_id).decode(),
                world_size=self._size,
                packed_buffer_size_bytes=self._chunk_bytes,
                connection=self._key,
                meeting_seconds=limit,
            )
            await _together(self.channel.init(message.model_dump()), meeting, stall_seconds=limit)

    async def update(self, weights: HostCopy) -> None:
        """Send the copy while it is being made; the engine answers when it has loaded everything."""
        if self._group is None:
            raise WeightSyncError("the engine is not connected: call init first")
        first = partial(weights.wait_for_first_buffer, timeout_seconds=self._deadlines.timeout_seconds)
        await asyncio.to_thread(first)
        with self._leaving_what_breaks():
            stall, start = self._deadlines.stall_seconds(), time.monotonic()
            # the whole deadline: the engine ends when it is over, and how many others share the way is not
            # known here
            limit = self._deadlines.timeout_seconds
            message = UpdateMessage.of(weights.manifest, connection=self._key, transfer_seconds=limit)
            send = partial(self._group.send, weights, chunk_bytes=self._chunk_bytes, stall_seconds=stall)
            sending = self._in_thread(send)
            call = self.channel.update(message.model_dump(mode="json", exclude={"abort"}))
            await _together(call, sending, stall_seconds=stall)
            self._deadlines.note("transfer", time.monotonic() - start)

    async def finish(self, version: str) -> None:
        """Let the engine put its model together."""
        await self.channel.finish(version)

    async def shutdown(self) -> None:
        """Leave the group. A thread that still works in it ends once it is aborted."""
        self._leave()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def _leaving_what_breaks(self) -> Iterator[None]:
        """Leave the group when the block fails: it is of no more use."""
        try:
            yield
        except BaseException:
            self._leave()
            raise

    def _enter(self, place: MemberPlace) -> "_Group":
        """Make the group. Blocks. Raises GroupBrokenError when it has been left meanwhile."""
        group = _Group(self._connect, place, self._device)
        with self._leaving:
            if self._key == place.key:
                self._group = group
                return group
        group.close()
        raise GroupBrokenError("it was given up before all were there")

    def _leave(self) -> None:
        with self._leaving:
            self._key = ""
            group, self._group = self._group, None
        if group is not None:
            group.close()

    def _in_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        future.add_done_callback(read_outcome)
        return future


class _Group:
    """Rank 0 of a group with one engine; see `Communicator`. Its calls block up to their deadlines."""

    def __init__(self, connect: Connect, place: MemberPlace, device: Device) -> None:
        self._device = device
        with device.use():
            self._library = connect(place, device=device)
        self._watchdog = Watchdog(self._library.abort)

    def begin_to_meet(self, *, timeout_seconds: float) -> Future[None]:
        """Meet the engine's workers, in a thread: the abort may have to wait for it."""

        def meet() -> None:
            with self._watchdog.within(timeout_seconds), self._device.use():
                self._library.meet()

        return in_thread(meet, name="weight-group-meeting")

    def id_while_meeting(self, met: Future[None], *, ends_at: float) -> bytes:
        """The id of the group, by which they come."""
        return id_while_meeting(self._library, met, ends_at=ends_at)

    def send(self, weights: HostCopy, *, chunk_bytes: int, stall_seconds: float) -> None:
        """Give all chunks to the engine. Gives up what does not go on for `stall_seconds`."""
        with self._device.use():
            buffers = self._each_until_copied(weights.buffers(stall_seconds=stall_seconds))
            tensors = complete_tensors(buffers, weights.manifest)
            chunks = packed_chunks(tensors, chunk_bytes=chunk_bytes, device=self._device)
            for _ in broadcast_all(self, chunks, timeout_seconds=stall_seconds):
                pass

    def broadcast(self, buffer: torch.Tensor, *, timeout_seconds: float) -> "_Work":
        """See `Communicator`."""
        with self._watchdog.within(timeout_seconds), self._device.use():
            work = self._library.broadcast(buffer)
        return _Work(work, buffer=buffer, watchdog=self._watchdog, timeout_seconds=timeout_seconds)

    def close(self) -> None:
        """See `Communicator`."""
        self._watchdog.abort_now()

    def _each_until_copied(self, buffers: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """The buffers, each kept until the device has copied what was read of it."""
        for buffer in buffers:
            yield buffer
            self._device.synchronize()


class _Work:
    """A chunk on its way; see `Work`."""

    def __init__(
        self, work: LibraryWork, *, buffer: torch.Tensor, watchdog: Watchdog, timeout_seconds: float
    ) -> None:
        self._work = work
        self._buffer = buffer
        self._watchdog = watchdog
        self._timeout_seconds = timeout_seconds

    def wait(self) -> torch.Tensor:
        """See `Work`."""
        with self._watchdog.within(self._timeout_seconds):
            self._work.wait()
        return self._buffer


async def _together(call: Awaitable[None], own_part: asyncio.Future[None], *, stall_seconds: float) -> None:
    """Call the engine while the trainer does its part. Raises what one of them fails with."""
    errors = await act_together({"engine": call}, own_part, stall_seconds=stall_seconds)
    for error in errors.values():
        raise error
    await own_part
