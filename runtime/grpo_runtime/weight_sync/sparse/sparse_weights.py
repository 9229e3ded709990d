"""The trainer's copy of all weights, what changed since the copy before, and which engines can use that."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import torch

from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.source import WeightSource
from grpo_runtime.weight_sync.stream.changes import MOST_OF_ALL, ChangeFinder, Changes
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

log = logging.getLogger(__name__)

_MOST_REFUSALS = 2
"""An engine that refused changes so often keeps no weights, as one that has no memory to stage them."""


class SparseWeights:
    """Weights for a group; see `PreparedWeights`. An engine gets what changed since `base` where that is
    few enough and the engine finished the update of `base`, and all weights otherwise.

    A thread compares the two copies while `copy` is filled. `base` is let go of after that, and its memory
    is used again. Without `base` all weights are sent.
    """

    def __init__(
        self,
        copy: HostCopy,
        *,
        base: "SparseWeights | None" = None,
        refusals: Counter[str] | None = None,
    ) -> None:
        """`refusals` counts over all copies how often an engine said that it must be given all weights."""
        self.copy = copy
        self.num_since_whole = 0
        """Changes that followed one another since all weights were sent to every engine."""
        self.changes: Changes | None = None
        self._holders: set[str] = set()
        self._holders_of_base = set() if base is None else set(base._holders)
        self._refusals = Counter[str]() if refusals is None else refusals
        self._error: BaseException | None = None
        self._num_sent = 0
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        if base is not None:
            self._thread = threading.Thread(
                target=self._compare,
                args=(base.copy, base.num_since_whole),
                name="compare-weights",
                daemon=True,
            )
            self._thread.start()

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights."""
        return self.copy.num_bytes

    @property
    def num_update_bytes(self) -> int | None:
        """Bytes that are sent to engines that can use what changed: those of the changes with their index,
        or of all weights, and the tag. None until that is known."""
        if self._thread is not None and self._thread.is_alive():
            return None
        if self.changes is None:
            return self.copy.manifest.stream_bytes
        return self.changes.table.stream_bytes

    @property
    def spares_too_little(self) -> bool:
        """Whether all weights are sent because what changed is more than MOST_OF_ALL. Known once they are
        compared."""
        return self._thread is not None and self.changes is None and self._error is None

    @property
    def num_bytes_sent(self) -> int:
        """See `PreparedWeights`."""
        return self.copy.num_bytes_sent + self._num_sent

    def wait_until_read(self) -> float:
        """See `PreparedWeights`."""
        return self.copy.wait_until_read()

    def wait_until_ready(self, *, timeout_seconds: float) -> None:
        """Wait until there is something to send, which is the first buffer or all changes. Raises
        WeightSyncError when that takes longer, and when the weights cannot be read."""
        start = time.monotonic()
        self.copy.wait_for_first_buffer(timeout_seconds=timeout_seconds)
        if self._thread is not None:
            self._thread.join(timeout_seconds - (time.monotonic() - start))
            if self._thread.is_alive():
                raise WeightSyncError(f"the trainer's weights were not compared within {timeout_seconds:g} s")
        if self._error is not None:
            raise WeightSyncError(f"the trainer's weights cannot be compared: {self._error}")

    def can_be_base(self) -> bool:
        """Wait until these weights are copied and compared; whether all of them are there."""
        if self._thread is not None:
            self._thread.join()
        try:
            self.copy.wait_for(self.copy.manifest.stream_bytes)
        except WeightSyncError:
            # `wait_until_read` has raised it to the trainer
            return False
        return True

    def changes_for(self, engines: Iterable[str]) -> Changes | None:
        """What changed, if that is few enough and all of these engines have what it changes."""
        can_use = {name for name in self._holders_of_base if self._refusals[name] < _MOST_REFUSALS}
        return self.changes if can_use.issuperset(engines) else None

    def buffers(self, changes: Changes | None, *, stall_seconds: float) -> Iterator[torch.Tensor]:
        """What is sent: the stream of all weights, or the bytes of `changes`, and the tag of that stream."""
        if changes is None:
            yield from self.copy.buffers(stall_seconds=stall_seconds)
            return
        tag = torch.frombuffer(bytearray(self.copy.tag), dtype=torch.uint8)
        for buffer in torch.cat([changes.body, tag]).split(self.copy.manifest.buffer_bytes):
            yield buffer
            with self._sending:
                self._num_sent += len(buffer)

    def needs_all(self, engines: Iterable[str]) -> None:
        """These engines said that they must be given all weights."""
        self._refusals.update(engines)
        self._holders_of_base.difference_update(engines)

    def has_failed(self, engines: Iterable[str]) -> None:
        """These engines did not get the weights: what they have kept is not known."""
        self._holders_of_base.difference_update(engines)

    def is_held_by(self, engines: Iterable[str]) -> None:
        """These engines have finished the update to these weights."""
        self._holders.update(engines)

    def _compare(self, base: HostCopy, num_since_whole: int) -> None:
        try:
            self.changes = _changes(base, self.copy)
        except BaseException as error:  # handed on by `wait_until_ready`
            self._error = error
            return
        if self.changes is not None:
            self.num_since_whole = num_since_whole + 1


def _changes(base: HostCopy, copy: HostCopy) -> Changes | None:
    if base.manifest != copy.manifest:
        return None
    finder = ChangeFinder(copy.manifest)
    for end in finder.find(base.memory.stream, copy.memory.stream):
        copy.wait_for(end)
    copy.wait_for(copy.manifest.stream_bytes)
    return finder.changes(base=base.tag)


class SparsePreparation:
    """Makes copies one after the other, each with what changed since the one before. All weights are sent
    every `full_every` syncs, and whenever most of them changed."""

    def __init__(self, prepare: Callable[[WeightSource], HostCopy], *, full_every: int) -> None:
        self._prepare = prepare
        self._full_every = full_every
        self._refusals = Counter[str]()
        self._has_told = False
        self._last: SparseWeights | None = None

    def __call__(self, source: WeightSource) -> SparseWeights:
        """The next copy. Waits until the one before is compared. Raises as the preparation does."""
        base, self._last = self._last, None
        if base is not None and (not base.can_be_base() or base.num_since_whole + 1 >= self._full_every):
            base = None
        if base is not None and base.spares_too_little and not self._has_told:
            self._has_told = True
            log.warning(
                "weightSync.sparse spares nothing now: what changed in a step is more than %.0f %% of the "
                "bytes of all weights, so that these are sent. In float32 nearly all change at each step, in "
                "bfloat16 few (model.dtype)",
                100 * MOST_OF_ALL,
            )
        self._last = SparseWeights(self._prepare(source), base=base, refusals=self._refusals)
        return self._last
