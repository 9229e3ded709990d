"""A group over TCP by gloo, which speaks no pickle, needs no GPU and no default process group."""

import threading
import time
from collections import deque
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store

from grpo_runtime.errors import first_line
from grpo_runtime.weight_sync.group import GroupMember, GroupReceiver, Invite, Join
from grpo_runtime.weight_sync.group_sender import GroupSender
from grpo_runtime.weight_sync.interface import Backend, GroupBrokenError, Reach, Receiver, ReceiverSettings
from grpo_runtime.weight_sync.receiver import StagingReceiver
from grpo_runtime.weight_sync.stream.host_copy import HostCopy, host_copy
from grpo_runtime.weight_sync.stream.memory import FindGpu, gpu_of_rank

_REST_SECONDS = 1.0
"""A group is let go of so long after its last work."""


class GlooGroup:
    """A group of members that have met; see `Communicator`."""

    def __init__(self, store: Store, member: GroupMember, *, own_address: str, invite: Invite) -> None:
        """Meet the others. Raises GroupBrokenError when one of them does not come."""
        invite(b"")
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined] # not in stubs
        # by address: a pod's or a laptop's host name may resolve to nothing that the other side can reach
        options._devices = [ProcessGroupGloo.create_device(hostname=own_address)]
        options._timeout = timedelta(seconds=member.meeting_seconds)
        self._works: deque[Any] = deque(maxlen=4)
        _let_go_of_the_idle()
        try:
            self._group = ProcessGroupGloo(PrefixStore(member.key, store), member.rank, member.size, options)
        except RuntimeError as error:
            raise GroupBrokenError(
                f"not all members met within {member.meeting_seconds:g} s: {first_line(error)}"
            ) from error

    def broadcast(self, buffer: torch.Tensor, *, timeout_seconds: float) -> "GlooWork":
        """Begin to give the bytes that rank 0 has in `buffer` to the buffers of all others."""
        work = GlooWork(self._group, buffer, timeout=timedelta(seconds=timeout_seconds))
        self._works.append(work)
        return work

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way."""
        return all(work.is_over for work in self._works)

    def close(self) -> None:
        """Leave the group. Gloo closes it with the last reference to it, which is let go of later: while it
        works, that would wait for its threads, and they for Python's lock, which is held."""
        with _lock:
            _left.append((time.monotonic(), self))
        _let_go_of_the_idle()


class GlooWork:
    """One buffer on its way; see `Work`."""

    def __init__(self, group: ProcessGroupGloo, buffer: torch.Tensor, *, timeout: timedelta) -> None:
        # the process ends when a group is destroyed while it works
        self._group = group
        self._buffer = buffer
        self._timeout = timeout
        options = BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = 0, 0, timeout
        self._work: Any = group.broadcast([buffer], options)  # type: ignore[attr-defined] # not in stubs

    @property
    def is_over(self) -> bool:
        """Whether it has arrived or failed."""
        return bool(self._work.is_completed())

    def wait(self) -> torch.Tensor:
        """Wait until it has arrived."""
        try:
            self._work.wait(self._timeout)
        except RuntimeError as error:
            raise GroupBrokenError(first_line(error)) from error
        return self._buffer


_left: list[tuple[float, GlooGroup]] = []
"""Groups of this process that were left, and when."""
_lock = threading.Lock()


def _let_go_of_the_idle() -> None:
    now = time.monotonic()
    with _lock:
        _left[:] = [
            (left_at, group) for left_at, group in _left if now - left_at < _REST_SECONDS or not group.is_idle
        ]


def gloo_backend(name: str, *, join: Join = GlooGroup, rank_gpu: FindGpu = gpu_of_rank) -> Backend[HostCopy]:
    """Engines in one group with the trainer, whose members send from the host: over gloo, or by another
    communicator that `join` makes."""

    def make_receiver(settings: ReceiverSettings) -> Receiver:
        return StagingReceiver(GroupReceiver(join, worker=settings.worker), settings)

    return Backend[HostCopy](
        name=name,
        reach=Reach.NETWORK,
        prepare=lambda source: host_copy(source, rank_gpu()),
        make_sender=partial(GroupSender, join=join),
        make_receiver=make_receiver,
        is_collective=True,
        receives_while_serving=True,
    )
