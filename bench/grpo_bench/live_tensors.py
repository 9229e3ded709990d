"""Counts the bytes of all tensors that a piece of code keeps alive, on any device, without its allocator."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """While it is entered it sees the result of every operation, and knows each storage until it is freed."""

    def __init__(self, *, known: Iterable[torch.Tensor] = ()) -> None:
        """Tensors that are `known` were there before, and do not count."""
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._most_bytes = 0
        self.peak_bytes = 0

    @property
    def live_bytes(self) -> int:
        """Of the storages that were made here and are not freed."""
        held = (reference() for reference in list(self._storages.values()))
        return sum(storage.nbytes() for storage in held if storage is not None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                self._add(tensor.untyped_storage())
        # FSDP2 frees a storage by resizing it to nothing, so the sum is only a bound; it is quick to compute
        if self._most_bytes > self.peak_bytes:
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, num_bytes = storage._cdata, storage.nbytes()
        if key in self._storages or key in self._known:
            return

        def forget(_: object) -> None:
            del self._storages[key]
            self._most_bytes -= num_bytes

        self._storages[key] = weakref.ref(storage, forget)
        self._most_bytes += num_bytes
