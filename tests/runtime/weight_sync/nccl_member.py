"""A member of a group whose other member came to the store and is gone before NCCL meets."""

import sys

from grpo_runtime.weight_sync.group import GroupMember, host_store
from grpo_runtime.weight_sync.interface import GroupBrokenError
from grpo_runtime.weight_sync.nccl import NcclGroup, TorchNccl
from grpo_runtime.weight_sync.stream.memory import device_of_rank

GIVEN_UP = "given up:"
KEY = "key"


def main() -> int:
    """Returns 0 when the group was given up, and this process with its GPU goes on."""
    device = device_of_rank()
    store = host_store("127.0.0.1", timeout_seconds=5.0)
    store.set(f"{KEY}/members/1", "")
    member = GroupMember(KEY, rank=0, size=2, meeting_seconds=5.0)
    try:
        NcclGroup(
            store,
            member,
            own_address="127.0.0.1",
            invite=lambda nccl_id: None,
            connect=TorchNccl,
            device=device,
        )
    except GroupBrokenError as error:
        with device.use():
            assert device.empty(8).zero_().sum().item() == 0
        print(GIVEN_UP, error)
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
