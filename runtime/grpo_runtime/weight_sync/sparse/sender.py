"""The trainer's side of a sparse sync: what changed since the copy before, and which engines can use that."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from grpo_runtime.settings import TrainerSettings
from grpo_runtime.weight_sync.deadlines import not_done_within
from grpo_runtime.weight_sync.interface import (
    Backend,
    Failures,
    Info,
    ModelFiles,
    NeedsAllWeightsError,
    Peer,
    Receiver,
    ReceiverSettings,
    SenderSettings,
    WeightSender,
    WeightSyncError,
)
from grpo_runtime.weight_sync.receiver import StagingReceiver
from grpo_runtime.weight_sync.source import WeightSource
from grpo_runtime.weight_sync.sparse.changes import MOST_OF_ALL, ChangeFinder, Changes
from grpo_runtime.weight_sync.sparse.receiver import SparseReceiver
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

log = logging.getLogger(__name__)

_MOST_REFUSALS = 2
"""An engine that refused changes so often keeps no weights, as one that has no memory to stage them."""
_CHECKED_BYTES_PER_SECOND = 2e8
"""Speed at which an engine on a busy CPU puts changes into what it kept, and computes the tag of it."""


def sparse_backend(backend: Backend[HostCopy], *, full_every: int | None = None) -> "Backend[SparseWeights]":
    """`backend`, whose senders can send a part of a copy and whose receivers stage, as it sends only what
    changed. All weights are sent every `full_every` syncs; without it only `for_run` gives one that a trainer
    can use."""

    def prepare(source: WeightSource) -> SparseWeights:
        raise ValueError(f"{name} weight sync is that of a run: it must know how often all weights are sent")

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> SparseSender:
        return SparseSender(backend.make_sender(engines, settings), settings)

    def make_receiver(settings: ReceiverSettings) -> Receiver:
        receiver = backend.make_receiver(settings)
        if not isinstance(receiver, StagingReceiver):
            raise TypeError(f"{backend.name} weight sync keeps no weights that could be changed")
        return SparseReceiver(receiver.transport, settings)

    def for_run(settings: TrainerSettings, model_files: ModelFiles) -> Backend[SparseWeights]:
        sparse = settings.run_config.weight_sync.sparse
        if sparse is None:
            raise ValueError(f"{name} weight sync needs weightSync.sparse")
        return sparse_backend(backend, full_every=sparse.full_every_steps)

    name = f"sparse_{backend.name}"
    return Backend[SparseWeights](
        name=name,
        reach=backend.reach,
        prepare=prepare if full_every is None else SparsePreparation(backend.prepare, full_every=full_every),
        make_sender=make_sender,
        make_receiver=make_receiver,
        is_collective=backend.is_collective,
        needs_gpu=backend.needs_gpu,
        for_run=for_run,
        update_bytes=lambda weights: weights.num_update_bytes,
        receives_while_serving=backend.receives_while_serving,
    )


class SparseWeights:
    """The trainer's copy of all weights, and what changed since the copy before; see `PreparedWeights`. An
    engine gets what changed since `base` where that is few enough and the engine finished the update of
    `base`, and all weights otherwise.

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
        self.changes: ChangedWeights | None = None
        self._holders: set[str] = set()
        self._holders_of_base = set() if base is None else set(base._holders)
        self._refusals = Counter[str]() if refusals is None else refusals
        self._error: BaseException | None = None
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
        """What has left the trainer so far, with the tag of the stream: once for each group of engines,
        however many are in it, once for each engine with a connection of its own, and once in all where
        engines read what was written for them."""
        return self.copy.num_bytes_sent + (0 if self.changes is None else self.changes.num_bytes_sent)

    def wait_until_read(self) -> float:
        """Wait until the source need not stay as it is for a copy of it; returns the seconds that the copy
        took."""
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

    def changes_for(self, engines: Iterable[str]) -> "ChangedWeights | None":
        """What changed, if that is few enough and all of these engines have what it changes."""
        can_use = {name for name in self._holders_of_base if self._refusals[name] < _MOST_REFUSALS}
        return self.changes if can_use.issuperset(engines) else None

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
            found = _changes(base, self.copy)
        except BaseException as error:  # handed on by `wait_until_ready`
            self._error = error
            return
        if found is not None:
            self.changes = ChangedWeights(self.copy, found)
            self.num_since_whole = num_since_whole + 1


def _changes(base: HostCopy, copy: HostCopy) -> Changes | None:
    if base.manifest != copy.manifest:
        return None
    finder = ChangeFinder(copy.manifest)
    for end in finder.find(base.memory.stream, copy.memory.stream):
        copy.wait_for(end)
    copy.wait_for(copy.manifest.stream_bytes)
    return finder.changes(base=base.tag)


class ChangedWeights:
    """What changed, as it is sent in place of a whole copy: its bytes, and the tag of all weights."""

    def __init__(self, copy: HostCopy, changes: Changes) -> None:
        self.whole = copy
        self.table = changes.table
        self.body = changes.body
        self.num_changed = changes.num_changed
        self.num_bytes_sent = 0
        self.checking_seconds = copy.num_bytes / _CHECKED_BYTES_PER_SECOND
        """The engines check all weights once the last change is there."""
        self._sending = threading.Lock()

    def wait_for_first_buffer(self, *, timeout_seconds: float) -> None:
        """Nothing: all of it is there."""

    def update_info(self, *, connection: str = "", stall_seconds: float) -> Info:
        """The `update` that announces it, for the control channel."""
        info = self.whole.update_info(connection=connection, stall_seconds=stall_seconds)
        return {**info, "changes": self.table.model_dump(mode="json")}

    def buffers(self, *, stall_seconds: float | None = None) -> Iterator[torch.Tensor]:
        """The bytes of the changes and the tag, in buffers as those of a copy."""
        tag = torch.frombuffer(bytearray(self.whole.tag), dtype=torch.uint8)
        for buffer in torch.cat([self.body, tag]).split(self.whole.manifest.buffer_bytes):
            yield buffer
            with self._sending:
                self.num_bytes_sent += len(buffer)


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


class SparseSender:
    """A WeightSender around `sender`, which is given what changed where all engines can use that, and a whole
    copy where not.

    An engine that says that it cannot has not failed: it gets all weights in the same update.
    """

    def __init__(self, sender: WeightSender[Any], settings: SenderSettings) -> None:
        self._sender = sender
        self._timeout_seconds = settings.timeout_seconds
        self._delivered: SparseWeights | None = None
        """Weights that the last `update` delivered, until `finish`."""
        self.init = sender.init
        self.start = sender.start

    async def update(
        self, weights: SparseWeights, *, engines: Collection[str], ends_at: float | None = None
    ) -> Failures:
        """Deliver what changed, or all weights, and wait until the receivers have checked them. All of it has
        one deadline."""
        self._delivered = weights
        start = time.monotonic()
        ends_at = start + self._timeout_seconds if ends_at is None else ends_at
        try:
            await asyncio.to_thread(weights.wait_until_ready, timeout_seconds=ends_at - start)
        except WeightSyncError as error:
            failures: Failures = dict.fromkeys(engines, error)
        else:
            sent = weights.changes_for(engines) or weights.copy
            failures = await self._sender.update(sent, engines=engines, ends_at=ends_at)
        if lacking := {n for n, error in failures.items() if isinstance(error, NeedsAllWeightsError)}:
            weights.needs_all(lacking)
            others = {name: error for name, error in failures.items() if name not in lacking}
            failures = others | dict(await self._give_all(weights, lacking, ends_at=ends_at))
        weights.has_failed(failures)
        return failures

    async def finish(self, version: str, *, engines: Collection[str]) -> Failures:
        """Apply what was delivered. Engines that do can use what changes next."""
        delivered, self._delivered = self._delivered, None
        failures = await self._sender.finish(version, engines=engines)
        if delivered is not None:
            delivered.is_held_by(set(engines) - failures.keys())
            delivered.has_failed(failures)
        return failures

    async def abort(self, engines: Collection[str]) -> Failures:
        """End an update instead of finishing it."""
        self._delivered = None
        return await self._sender.abort(engines)

    async def shutdown(self) -> None:
        """Let go of every connection."""
        self._delivered = None
        await self._sender.shutdown()

    async def _give_all(
        self, weights: SparseWeights, engines: Collection[str], *, ends_at: float
    ) -> Failures:
        """Give these engines all weights, in what is left of the deadline."""
        if time.monotonic() >= ends_at:
            return dict.fromkeys(engines, WeightSyncError(not_done_within(self._timeout_seconds)))
        return await self._sender.update(weights.copy, engines=engines, ends_at=ends_at)
