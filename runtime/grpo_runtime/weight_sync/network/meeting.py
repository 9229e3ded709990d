"""Where the members of a group meet: a TCPStore that the trainer hosts.

Its address and a random key travel on the authenticated control channel, and so does NCCL's id of a group.
Only numbers and addresses are written to the store. The key keeps groups apart; whoever reaches the port of
the store can read it there.
"""

import base64
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch.distributed import TCPStore

from grpo_runtime.errors import first_line
from grpo_runtime.weight_sync.interface import Info, WeightSyncError

UNIQUE_ID_BYTES = 128
"""Of NCCL's id of a group."""
UniqueId = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{171}=$")]
"""NCCL's id of a group in base64. Whoever has it can join the group, so a field of it has `repr=False`."""


@dataclass(frozen=True)
class MemberPlace:
    """One member's place in a group of `size`. `key` is that of the group: no other group has it. `nccl_id`
    is NCCL's id of it, where the group is one of NCCL and the rank is not 0, which makes the id."""

    key: str
    rank: int
    size: int
    meeting_seconds: float
    nccl_id: bytes = field(default=b"", repr=False)


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

    def place(self, *, worker: int) -> MemberPlace:
        """The place of this worker of the engine."""
        nccl_id = base64.b64decode(self.nccl_unique_id_b64 or "")
        return MemberPlace(self.key, self.first_rank + worker, self.size, self.meeting_seconds, nccl_id)


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
