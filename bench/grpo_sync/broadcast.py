"""A raw gloo broadcast: one group, the same code at both ends, and nothing but the bytes."""

from datetime import timedelta

import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

HOST = "127.0.0.1"
SENDER = 0
BUFFER_BYTES = 64 * 1024 * 1024
_TIMEOUT = timedelta(seconds=120)


def host_store() -> TCPStore:
    """The place where all members of a group meet."""
    return TCPStore(HOST, 0, is_master=True, timeout=_TIMEOUT, wait_for_workers=False)


def find_store(port: int) -> TCPStore:
    """The store that the sender hosts."""
    return TCPStore(HOST, port, is_master=False, timeout=_TIMEOUT, wait_for_workers=False)


def join(store: TCPStore, *, rank: int, size: int) -> ProcessGroupGloo:
    """The group of the sender and `size - 1` receivers. Returns when all have come."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined] # torch declares neither
    options._devices = [ProcessGroupGloo.create_device(hostname=HOST)]
    options._timeout = _TIMEOUT
    return ProcessGroupGloo(PrefixStore(f"group-of-{size}", store), rank, size, options)


def broadcast(group: ProcessGroupGloo, flat: torch.Tensor) -> None:
    """Send `flat` (uint8) from the sender, or fill it at a receiver, buffer by buffer."""
    options = BroadcastOptions()
    options.rootRank, options.rootTensor = SENDER, 0
    for buffer in flat.split(BUFFER_BYTES):
        group.broadcast([buffer], options).wait(_TIMEOUT)  # type: ignore[attr-defined]
