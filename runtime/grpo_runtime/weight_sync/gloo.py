"""A group over TCP by gloo, which speaks no pickle, needs no GPU and no default process group."""

from datetime import timedelta
from typing import Any

import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store

from grpo_runtime.weight_sync.interface import GroupBrokenError
from grpo_runtime.weight_sync.meeting import Place, first_line


class GlooGroup:
    """The members that met at a place; see `Communicator`."""

    def __init__(self, store: Store, place: Place, *, own_address: str) -> None:
        """Meet the others. Raises GroupBrokenError when one of them does not come."""
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined] # not in stubs
        # by address: a pod's or a laptop's host name may resolve to nothing that the other side can reach
        options._devices = [ProcessGroupGloo.create_device(hostname=own_address)]
        options._timeout = timedelta(seconds=place.meeting_seconds)
        try:
            self._group = ProcessGroupGloo(PrefixStore(place.key, store), place.rank, place.size, options)
        except RuntimeError as error:
            raise GroupBrokenError(
                f"not all members met within {place.meeting_seconds:g} s: {first_line(error)}"
            ) from error

    def broadcast(self, buffer: torch.Tensor, *, timeout_seconds: float) -> "GlooWork":
        """See `Communicator`."""
        return GlooWork(self._group, buffer, timeout=timedelta(seconds=timeout_seconds))

    def close(self) -> None:
        """Nothing to do: gloo closes a group with the last reference to it."""


class GlooWork:
    """One buffer on its way; see `Work`."""

    def __init__(self, group: ProcessGroupGloo, buffer: torch.Tensor, *, timeout: timedelta) -> None:
        # the process ends when a group is destroyed while it works
        self._group = group
        self._timeout = timeout
        options = BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = 0, 0, timeout
        self._work: Any = group.broadcast([buffer], options)  # type: ignore[attr-defined] # not in stubs

    def wait(self) -> None:
        """See `Work`."""
        try:
            self._work.wait(self._timeout)
        except RuntimeError as error:
            raise GroupBrokenError(first_line(error)) from error
