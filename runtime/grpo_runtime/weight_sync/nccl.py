"""A group over GPUs by NCCL, through torch's process group, without a default group and without pickles.

NCCL blocks in its calls for as long as another member does not do its part, and has no deadline. So a
watchdog aborts the group, which ends all of its calls; one that was aborted is of no more use. Read in the
source of torch 2.13 (ProcessGroupNCCL.cpp, NCCLUtils.cpp):

- Only a communicator that is made in non-blocking mode (`config.blocking = 0`) can be aborted while it meets
  the others. Its first use then waits for at most TORCH_NCCL_NONBLOCKING_TIMEOUT, which torch reads once in a
  process, and holds a lock that the abort needs. Later meetings have less time than the first: their members
  are aborted when it is over, and what waits and what aborts end in threads of their own.
- Torch's own watchdog ends the process by SIGABRT when a member is gone. With TORCH_NCCL_BLOCKING_WAIT there
  is none: `wait` waits for the device, raises what went wrong, and returns as if all was well when it was
  aborted.
- Rank 0 makes NCCL's id when it begins to connect, writes it to its store as the bytes that it is, and then
  waits for the others, also in non-blocking mode (initNCCLComm ends with getNcclComm). So it connects in a
  thread, and the id is read from its store meanwhile; the others read it from theirs. Of a group that is made
  as here torch keeps nothing else in a store. So each member has one of its own, in its memory, and the id
  comes to the engines on the authenticated control channel.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
from torch.distributed import BroadcastOptions, HashStore, PrefixStore, Store

from grpo_runtime.errors import first_line
from grpo_runtime.process.background import in_thread
from grpo_runtime.weight_sync.group import GroupMember, GroupReceiver, Invite
from grpo_runtime.weight_sync.group_sender import GroupSender
from grpo_runtime.weight_sync.interface import (
    Backend,
    GroupBrokenError,
    Peer,
    Reach,
    Receiver,
    ReceiverSettings,
    SenderSettings,
    WeightSyncError,
)
from grpo_runtime.weight_sync.receiver import StagingReceiver
from grpo_runtime.weight_sync.stream.host_copy import HostCopy, device_copies
from grpo_runtime.weight_sync.stream.manifest import BUFFERS_IN_FLIGHT
from grpo_runtime.weight_sync.stream.memory import CudaDevice, Device, device_of_rank
from grpo_runtime.weight_sync.watchdog import Watchdog

log = logging.getLogger(__name__)

_TORCH_SECONDS = 24 * 3600.0
"""The deadline that torch is given for a buffer: the watchdog's is shorter."""
_ABORT_SECONDS = 10.0
_ADVICE = "; is NCCL_SOCKET_IFNAME right? Set it in both roles, or set weightSync.backend Gloo"
_MOMENT = timedelta(seconds=0.1)
_RANKS_PER_ROOT = 128
"""How many ranks torch gives to each of NCCL's ids."""
_MOST_RANKS = 1 << 20
_LEFT = "left"
_UNTIL_LEFT = timedelta(days=365)
_KEY_OF_FIRST_ID = "0"
"""Where torch writes the id of a group's first communicator, and reads it (broadcastUniqueNCCLID)."""


class LibraryWork(Protocol):
    """A broadcast on its way."""

    def wait(self, /) -> Any:
        """Wait until the device is done with it, without a deadline."""
        ...


class LibraryGroup(Protocol):
    """What NcclGroup asks of the library. `meet` and `broadcast` may block until the group is aborted."""

    def meet(self) -> None:
        """Connect to the others, and wait until the communicator of all members is there."""
        ...

    def unique_id(self) -> bytes | None:
        """The id of the group, by which the others connect: rank 0 makes it as it begins to meet, in another
        thread. Waits a moment, and returns None while it is not there."""
        ...

    def broadcast(self, buffer: torch.Tensor) -> LibraryWork:
        """Begin to give what rank 0 has in `buffer`, in the memory of the device, to the others."""
        ...

    def abort(self) -> None:
        """End all calls and what is on its way, from any thread."""
        ...


class Connect(Protocol):
    """Makes a member of a group, which has not begun to connect."""

    def __call__(self, member: GroupMember, *, device: Any) -> LibraryGroup: ...


class NcclGroup:
    """A group of members that have met; see `Communicator`.

    A buffer in the memory of the device is sent or received where it is, any other through a buffer on the
    device.
    """

    def __init__(
        self,
        store: Store,
        member: GroupMember,
        *,
        own_address: str,
        invite: Invite,
        connect: Connect,
        device: Device,
    ) -> None:
        """Meet the others. Raises GroupBrokenError when one of them does not come, and WeightSyncError when
        an engine did not get the id of the group.

        `own_address` is not used: NCCL finds its interfaces by itself, or by NCCL_SOCKET_IFNAME.
        """
        self.device = device
        self.is_sender = member.rank == 0
        if not self.is_sender and not member.nccl_id:
            raise WeightSyncError("the trainer has sent no id of NCCL: does it run the same release?")
        self._slots: list[torch.Tensor | None] = [None] * BUFFERS_IN_FLIGHT
        self._num_sent = 0
        with device.use():
            members = PrefixStore(f"{member.key}/members", store)
            self._group = connect(member, device=device)
            self.watchdog = Watchdog(partial(_leave, self._group, members, is_sender=self.is_sender))
            advice = _ADVICE
            try:
                ends_at = time.monotonic() + member.meeting_seconds
                with self.watchdog.within(member.meeting_seconds):
                    met = self._begin_to_meet() if self.is_sender else None
                    if met is not None:
                        invite(_id_while_meeting(self._group, met, ends_at=ends_at))
                    advice = ""
                    _come_together(members, member)
                    # all of them reach the trainer, so that only NCCL can fail to connect them
                    advice = _ADVICE
                    self._wait_for_meeting(met or self._begin_to_meet(), ends_at=ends_at)
            except GroupBrokenError as error:
                self.close()
                error.args = (f"{error}{advice}",)
                raise
            except BaseException:
                self.close()
                raise
        if not self.is_sender:
            listening = partial(_abort_when_left, members, self.watchdog)
            threading.Thread(target=listening, name="weight-group-left", daemon=True).start()

    def broadcast(self, buffer: torch.Tensor, *, timeout_seconds: float) -> "NcclWork":
        """Begin to give the bytes that rank 0 has in `buffer` to the buffers of all others."""
        with self.watchdog.within(timeout_seconds), self.device.use():
            passed = buffer if self.device.holds(buffer) else self._slot(len(buffer))
            if self.is_sender and passed is not buffer:
                passed.copy_(buffer, non_blocking=True)
            work = self._group.broadcast(passed)
        return NcclWork(self, work, buffer=buffer, passed=passed, timeout_seconds=timeout_seconds)

    def close(self) -> None:
        """Leave the group, ending what is on its way where that can be ended. The watchdog aborts, which may
        take a while."""
        self.watchdog.abort_now()

    def _begin_to_meet(self) -> Future[None]:
        """Meet the others in another thread, which is left behind at the end: the abort may have to wait for
        it."""

        def meet() -> None:
            with self.device.use():
                self._group.meet()

        return in_thread(meet, name="weight-group-meeting")

    def _wait_for_meeting(self, met: Future[None], *, ends_at: float) -> None:
        try:
            met.result(timeout=max(0.0, ends_at - time.monotonic()))
        except TimeoutError:
            self.watchdog.abort_now()

    def _slot(self, num_bytes: int) -> torch.Tensor:
        index = self._num_sent % BUFFERS_IN_FLIGHT
        self._num_sent += 1
        slot = self._slots[index]
        if slot is None or len(slot) < num_bytes:
            slot = self._slots[index] = self.device.empty(num_bytes)
        return slot[:num_bytes]


class NcclWork:
    """A buffer on its way; see `Work`."""

    def __init__(
        self,
        group: NcclGroup,
        work: LibraryWork,
        *,
        buffer: torch.Tensor,
        passed: torch.Tensor,
        timeout_seconds: float,
    ) -> None:
        self._group = group
        self._work = work
        self._buffer = buffer
        self._passed = passed
        self._timeout_seconds = timeout_seconds

    def wait(self) -> torch.Tensor:
        """Wait until it has arrived."""
        group = self._group
        with group.watchdog.within(self._timeout_seconds), group.device.use():
            self._work.wait()
            if not group.is_sender and self._passed is not self._buffer:
                group.device.copy_to_host(self._buffer, self._passed).synchronize()
        return self._passed


class TorchNccl:
    """NCCL through torch; see `LibraryGroup`."""

    def __init__(self, member: GroupMember, *, device: CudaDevice) -> None:
        from torch.distributed import ProcessGroupNCCL  # not in every build of torch

        options = ProcessGroupNCCL.Options()
        options.config.blocking = 0
        options._timeout = timedelta(seconds=_ABORT_SECONDS)
        self._device = device
        self._ids = _store_of_id(member)
        # for good: it is of no concern to communicators that block, as those of training
        os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", str(math.ceil(member.meeting_seconds)))
        if member.size > _RANKS_PER_ROOT:
            # one id for all of them, where torch would make several. For good too: it reads this while it
            # connects, for as long as the others take to come, and groups of training work with it as well
            os.environ["TORCH_NCCL_RANKS_PER_ROOT"] = str(_MOST_RANKS)
        with _environment(
            TORCH_NCCL_BLOCKING_WAIT="1",
            TORCH_NCCL_ASYNC_ERROR_HANDLING="0",
            # with it torch looks for the other members in the store
            ENABLE_INTRA_NODE_COMM="0",
        ):
            self._group: Any = ProcessGroupNCCL(self._ids, member.rank, member.size, options)

    def meet(self) -> None:
        """Connect to the others, and wait until the communicator of all members is there."""
        self._group.eager_connect_single_device(self._device.device)
        # the first use waits for all members
        self.broadcast(self._device.empty(1)).wait()

    def unique_id(self) -> bytes | None:
        """The id of the group, by which the others connect: rank 0 makes it as it begins to meet, in another
        thread."""
        try:
            self._ids.wait([_KEY_OF_FIRST_ID], _MOMENT)
        except RuntimeError:  # it is not there yet
            return None
        found: bytes = self._ids.get(_KEY_OF_FIRST_ID)
        return found

    def broadcast(self, buffer: torch.Tensor) -> LibraryWork:
        """Begin to give what rank 0 has in `buffer`, in the memory of the device, to the others."""
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        options.timeout = timedelta(seconds=_TORCH_SECONDS)
        work: LibraryWork = self._group.broadcast([buffer], options)
        return work

    def abort(self) -> None:
        """End all calls and what is on its way, from any thread."""
        self._group.abort()


def _id_while_meeting(group: LibraryGroup, met: Future[None], *, ends_at: float) -> bytes:
    """The id of a group that rank 0 has begun to meet. Raises what ends the meeting before, and
    GroupBrokenError when there is none at the deadline (monotonic)."""
    while True:
        is_last_look = met.done() or time.monotonic() >= ends_at
        if met.done():
            met.result()  # raises what ended it
        if (found := group.unique_id()) is not None:
            return found
        if is_last_look:
            raise GroupBrokenError("NCCL has made no id for the group")


def _store_of_id(member: GroupMember) -> HashStore:
    """A store of this member alone, with the id of the group where that is known."""
    ids = HashStore()
    ids.set_timeout(timedelta(seconds=member.meeting_seconds))
    if member.nccl_id:
        ids.set(_KEY_OF_FIRST_ID, member.nccl_id)  # type: ignore[arg-type] # takes bytes too
    return ids


def _come_together(store: Store, member: GroupMember) -> None:
    """Wait until all members are at the store, whose deadline is that of the meeting."""
    store.set(str(member.rank), "")
    store.wait([str(rank) for rank in range(member.size)], timedelta(seconds=member.meeting_seconds))


def _leave(group: LibraryGroup, members: Store, *, is_sender: bool) -> None:
    """Abort, and notify the engines when it is the trainer that leaves: NCCL need not notice."""
    try:
        if is_sender:
            members.set(_LEFT, "")
    finally:
        group.abort()


def _abort_when_left(members: Store, watchdog: Watchdog) -> None:
    """Wait until the trainer leaves the group or is gone, with the store that it hosts. Blocks."""
    try:
        # by a connection of its own: a store does one thing at a time
        connection: Store = members.clone()  # type: ignore[attr-defined] # not in stubs
        connection.wait([_LEFT], _UNTIL_LEFT)
    except RuntimeError as error:
        log.debug("the trainer's store is gone: %s", first_line(error))
    watchdog.abort_now()


_environment_lock = threading.Lock()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables for as long as the block runs: torch reads them when a group is made, and the groups of
    training are to keep what they have."""
    with _environment_lock:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def nccl_backend(
    name: str,
    *,
    connect: Connect = TorchNccl,
    rank_device: Callable[[], Device] = device_of_rank,
    device: Callable[[torch.device], Device] = CudaDevice,
) -> Backend[HostCopy]:
    """Engines in one group with the trainer, whose members send from and to their GPUs. `connect` makes a
    member of a group of the library, `rank_device` gives the trainer's GPU and `device` that of a worker."""

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> GroupSender:
        return GroupSender(engines, settings, join=partial(NcclGroup, connect=connect, device=rank_device()))

    def make_receiver(settings: ReceiverSettings) -> Receiver:
        found = device(settings.device)
        join = partial(NcclGroup, connect=connect, device=found)
        return StagingReceiver(GroupReceiver(join, worker=settings.worker, staging=found), settings)

    return Backend[HostCopy](
        name=name,
        reach=Reach.NETWORK,
        prepare=device_copies(rank_device),
        make_sender=make_sender,
        make_receiver=make_receiver,
        is_collective=True,
        needs_gpu=True,
        receives_while_serving=True,
    )
