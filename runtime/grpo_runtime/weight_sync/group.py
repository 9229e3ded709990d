"""One group of the trainer and all workers of its engines, in which rank 0 gives each buffer to all others.

A group breaks as a whole when one member dies, hangs or refuses. So it has a deadline far below that of the
sync; the member that broke it is left out, and the others form another group, under a key of its own, and get
the same weights again (`group_sender`).

The members meet at a TCPStore that the trainer hosts. Its address and a random key travel on the
authenticated control channel, and so does NCCL's id of a group. Only numbers and addresses are written to the
store. The key keeps groups apart; every client of the store's port can read it there.
"""

import base64
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch.distributed import Store, TCPStore

from grpo_runtime.errors import first_line
from grpo_runtime.weight_sync.interface import Info, WeightSyncError
from grpo_runtime.weight_sync.stream.manifest import BUFFERS_IN_FLIGHT
from grpo_runtime.weight_sync.stream.memory import HOST, Staging

UNIQUE_ID_BYTES = 128
"""Bytes of NCCL's id of a group."""
UniqueId = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{171}=$")]
"""NCCL's id of a group in base64. It lets its holder join the group, so a field of it has `repr=False`."""


@dataclass(frozen=True)
class GroupMember:
    """One member of a group of `size`, by its rank. `key` is that of the group: no other group has it.
    `nccl_id` is NCCL's id of it, where the group is one of NCCL and the rank is not 0, which makes the id."""

    key: str
    rank: int
    size: int
    meeting_seconds: float
    nccl_id: bytes = field(default=b"", repr=False)


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

    def __call__(
        self, store: Store, member: GroupMember, *, own_address: str, invite: Invite
    ) -> Communicator:
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
        member = parsed.member(worker=self._worker)
        self._group = self._join(store, member, own_address=own_address, invite=_invite_nobody)
        self._key = parsed.key

    def missing_bytes(self, num_bytes: int) -> int:
        """How much of so much `memory` would have to be taken first."""
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
    """Does nothing, in an engine: the trainer has invited all."""


class GroupInitInfo(BaseModel):
    """What the verb `init` carries: where an engine's workers find the group. Worker 0 has `first_rank`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    address: Annotated[str, Field(min_length=1, max_length=253)]
    port: Annotated[int, Field(ge=1, le=65535)]
    key: Annotated[str, Field(min_length=16, max_length=128, repr=False)]
    first_rank: Annotated[int, Field(ge=1)]
    size: Annotated[int, Field(ge=2)]
    meeting_seconds: Annotated[float, Field(gt=0)]
    nccl_unique_id_b64: Annotated[UniqueId | None, Field(repr=False)] = None
    """Only in a group of NCCL."""

    def member(self, *, worker: int) -> GroupMember:
        """The rank of this worker of the engine in the group."""
        nccl_id = base64.b64decode(self.nccl_unique_id_b64 or "")
        return GroupMember(self.key, self.first_rank + worker, self.size, self.meeting_seconds, nccl_id)


def parse_init_info(info: Info) -> GroupInitInfo:
    """Raises WeightSyncError for anything but a GroupInitInfo."""
    try:
        return GroupInitInfo.model_validate(dict(info))
    except ValidationError as error:
        raise WeightSyncError(f"group init not understood: {error}") from error


def host_store(address: str, *, timeout_seconds: float) -> TCPStore:
    """A store at a free port of `address`."""
    try:
        return TCPStore(
            address, 0, is_master=True, timeout=timedelta(seconds=timeout_seconds), wait_for_workers=False
        )
    except RuntimeError as error:
        raise WeightSyncError(f"no meeting can be hosted at {address}: {first_line(error)}") from error


def find_store(info: GroupInitInfo) -> TCPStore:
    """The store that the trainer hosts. Raises WeightSyncError when this machine cannot reach it."""
    limit = timedelta(seconds=info.meeting_seconds)
    try:
        return TCPStore(info.address, info.port, is_master=False, timeout=limit, wait_for_workers=False)
    except RuntimeError as error:
        raise WeightSyncError(
            f"no trainer listens at {info.address}:{info.port}: {first_line(error)}"
        ) from error


def local_address_towards(host: str) -> str:
    """The address that packets to `host` (a name or an address) would leave from.

    Raises OSError when `host` cannot be resolved or there is no route. Sends nothing.
    """
    family, kind, protocol, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # connect on a datagram socket only chooses the route
        probe.connect(target)
        return str(probe.getsockname()[0])
