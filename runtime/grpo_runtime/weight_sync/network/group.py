"""One group of the trainer and all workers of its engines, in which rank 0 gives each buffer to all others.

A group breaks as a whole when one member dies, hangs or refuses. So it has a deadline far below that of the
sync; whoever broke it is left out, and the others form another group, under a key of its own, and get the
same weights again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import torch
from torch.distributed import Store

from grpo_runtime.weight_sync.interface import Info, WeightSyncError
from grpo_runtime.weight_sync.network.address import local_address_towards
from grpo_runtime.weight_sync.network.meeting import MemberPlace, find_store, parse_init_info
from grpo_runtime.weight_sync.stream.manifest import BUFFERS_IN_FLIGHT
from grpo_runtime.weight_sync.stream.memory import HOST, Staging


class Work(Protocol):
    """A buffer that is on its way."""

    def wait(self) -> torch.Tensor:
        """Wait until it has arrived. Returns the bytes where they are quickest to read: the buffer itself, or
        the memory that it was sent through, until the next buffer but one is on its way.

        Raises GroupBrokenError, after the timeout at the latest.
        """
        ...


class Communicator(Protocol):
    """One member's end of a group. After an error it is of no more use."""

    def broadcast(self, buffer: torch.Tensor, *, timeout_seconds: float) -> Work:
        """Begin to give the bytes that rank 0 has in `buffer` to the buffers of all others."""
        ...

    def close(self) -> None:
        """Leave the group, ending what is on its way where that can be ended."""
        ...


Invite = Callable[[bytes], None]
"""Lets the engines come, with NCCL's id of the group: b"" where the library has none."""


class Join(Protocol):
    """Meets the other members at the store."""

    def __call__(self, store: Store, place: MemberPlace, *, own_address: str, invite: Invite) -> Communicator:
        """Blocks until all are there. The trainer calls `invite` once they may come, and before it waits for
        them. Raises GroupBrokenError when one does not come in time."""
        ...


def broadcast_all(
    group: Communicator, buffers: Iterable[torch.Tensor], *, timeout_seconds: float
) -> Iterator[torch.Tensor]:
    """Give or take all buffers in order; yields what each `wait` returns."""
    in_flight: deque[Work] = deque()
    for buffer in buffers:
        in_flight.append(group.broadcast(buffer, timeout_seconds=timeout_seconds))
        if len(in_flight) == BUFFERS_IN_FLIGHT:
            yield in_flight.popleft().wait()
    while in_flight:
        yield in_flight.popleft().wait()


class GroupReceiver:
    """The end of the group in one worker; see `ReceiverTransport`."""

    def __init__(self, join: Join, *, worker: int, staging: Staging = HOST) -> None:
        self._join = join
        self._worker = worker
        self._staging = staging
        self._group: Communicator | None = None
        self._key = ""
        self._memory = torch.empty(0, dtype=torch.uint8)

    def init(self, info: Info) -> None:
        """Meet the sender that wrote `info`, and the other engines."""
        self.shutdown()
        parsed = parse_init_info(info)
        store = find_store(parsed)
        own_address = local_address_towards(parsed.address)
        place = parsed.place(worker=self._worker)
        self._group = self._join(store, place, own_address=own_address, invite=_invite_nobody)
        self._key = parsed.key

    def missing_bytes(self, num_bytes: int) -> int:
        """See `ReceiverTransport`."""
        return 0 if len(self._memory) == num_bytes else self._staging.needed_on_host(num_bytes)

    def memory(self, num_bytes: int, *, connection: str, stall_seconds: float) -> torch.Tensor:
        """Memory of this worker, the same for every update. `connection` is the key of the group."""
        if self._group is None or connection != self._key:
            raise WeightSyncError("this engine is not in the group of this sender: it must init first")
        if len(self._memory) != num_bytes:
            # first without the old one
            self._memory = torch.empty(0, dtype=torch.uint8)
            self._memory = self._staging.staging_memory(num_bytes)
        return self._memory

    def receive(self, buffers: Iterable[torch.Tensor], *, stall_seconds: float) -> Iterator[torch.Tensor]:
        """Fill the buffers in order."""
        assert self._group is not None  # `memory` came before
        try:
            yield from broadcast_all(self._group, buffers, timeout_seconds=stall_seconds)
        except WeightSyncError:
            # a group is not usable after an error: the sender forms another one
            self.shutdown()
            raise

    def shutdown(self) -> None:
        """Leave the group, if there is one."""
        group, self._group = self._group, None
        if group is not None:
            group.close()


def _invite_nobody(_: bytes) -> None:
    """What an engine does: the trainer has invited all."""
