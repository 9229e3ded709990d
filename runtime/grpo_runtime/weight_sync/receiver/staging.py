"""A receiver for every backend that carries bytes: it stages all of them, checks them, and hands them over
once. Where there is no memory for that, they go into the model while they arrive (`DirectLoad`).

vLLM is not known here: tests drive it without an engine.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

import torch
from pydantic import ValidationError

from grpo_runtime.weight_sync.interface import (
    Info,
    Load,
    ModelBrokenError,
    NeedsAllWeightsError,
    ReceiverSettings,
    WeightSyncError,
    WrongTagError,
)
from grpo_runtime.weight_sync.stream.changes import ChangeTable, exchange
from grpo_runtime.weight_sync.stream.digest import TAG_BYTES, is_same_tag
from grpo_runtime.weight_sync.stream.manifest import BUFFERS_IN_FLIGHT, WeightManifest, unpack
from grpo_runtime.weight_sync.stream.reading import alternating_buffers, complete_tensors
from grpo_runtime.weight_sync.stream.tags import make_digest
from grpo_runtime.weight_sync.stream.update_message import UpdateInfo

MAX_SYNC_BYTES = 16 * 2**40
"""Far above any model; a manifest beyond it is garbage."""


class ReceiverTransport(Protocol):
    """The end of a connection that carries bytes. Blocking. It knows neither names nor versions."""

    def init(self, info: Info) -> None:
        """Learn of the sender that wrote `info`, letting go of any other."""
        ...

    def missing_bytes(self, num_bytes: int) -> int:
        """How much of so much `memory` would have to be taken first."""
        ...

    def memory(self, num_bytes: int, *, connection: str, stall_seconds: float) -> torch.Tensor:
        """Where the stream that follows will be (uint8 [num_bytes]), on the CPU or a GPU.

        Raises WeightSyncError when the sender speaks of another `connection` than this one, or is gone.
        """
        ...

    def receive(self, buffers: Iterable[torch.Tensor], *, stall_seconds: float) -> Iterator[torch.Tensor]:
        """Fill the buffers, which are parts of `memory`, in order; yields the bytes of each as soon as it is
        full, where they are quickest to read, while the next one is on its way.

        Raises WeightSyncError when the sender is gone, or when a buffer takes longer than `stall_seconds`.
        """
        ...

    def shutdown(self) -> None:
        """Let go of the connection. Harmless when there is none."""
        ...


@dataclass(frozen=True)
class _KeptStream:
    """A whole, checked stream that the memory of the transport still has."""

    manifest: WeightManifest
    tag: bytes


@dataclass(frozen=True)
class _OpenChanges:
    """Changes that were put into the kept stream `before`, and that no `take` has asked for yet: `body` has
    what was there."""

    before: _KeptStream
    table: ChangeTable
    stream: torch.Tensor
    body: torch.Tensor


class StagingReceiver:
    """Takes one transfer at a time. Weights leave it only through `take`, whole and checked.

    A manifest that differs from the layout of the settings is refused before a single byte is received. What
    was taken must be copied before the next update, which may use the same memory.

    `keeps_stream` says that the transport's memory keeps the stream that was staged last, and is the same for
    the next one: then the next update may bring only what changed.
    """

    def __init__(
        self, transport: ReceiverTransport, settings: ReceiverSettings, *, keeps_stream: bool = False
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._keeps_stream = keeps_stream
        self._kept: _KeptStream | None = None
        self._open_changes: _OpenChanges | None = None
        self._staged: tuple[WeightManifest, torch.Tensor] | None = None
        self._is_loaded = False
        """Whether the model has weights that no `finish` has asked for."""

    def init(self, info: Info) -> None:
        """Learn of a new sender; what an earlier one had staged is dropped."""
        self._drop()
        self._transport.init(info)

    def start(self) -> None:
        """Open an update."""
        self._drop()

    def update(self, info: Info) -> None:
        """Receive and check the whole stream, or give the update up.

        Raises WeightSyncError when anything is wrong with it, and always for an abort: an update that was
        given up must not be finished.
        """
        self._drop()
        try:
            update = UpdateInfo.model_validate_json(json.dumps(info))
        except ValidationError as error:
            raise WeightSyncError(f"weight update not understood: {error}") from error
        if (manifest := update.manifest) is None:
            raise WeightSyncError(f"weight update given up: {update.abort or 'no reason given'}")
        if problems := [*manifest.problems(), *self._problems(manifest)]:
            raise WeightSyncError(f"weight update refused: {'; '.join(problems[:5])}")
        if not update.key:
            raise WeightSyncError("weight update refused: it came without the key of its tag")
        if update.changes is not None:
            try:
                self._staged = (manifest, self._stage_changes(manifest, update, update.changes))
            except torch.OutOfMemoryError as error:
                raise NeedsAllWeightsError(f"its GPU has no memory for changes: {error}") from error
            return
        direct, self._kept = self._settings.direct_load, None
        if direct is None or direct.has_room(self._transport.missing_bytes(manifest.stream_bytes)):
            self._staged = (manifest, self._stage(manifest, update))
        else:
            self._load(manifest, update, load=direct.load)
            self._is_loaded = True

    def take(self) -> Iterator[tuple[str, torch.Tensor]] | None:
        """The weights of a complete, checked update, as views of the staged bytes; they can be taken once.
        None when the model has them already.

        Raises WeightSyncError when there is no such update.
        """
        if self._is_loaded:
            self._is_loaded = False
            return None
        if self._staged is None:
            raise WeightSyncError("there is nothing to finish: no complete weight update was received")
        (manifest, stream), self._staged = self._staged, None
        self._open_changes = None
        return unpack(stream, manifest)

    def shutdown(self) -> None:
        """Let go of the connection and of what was staged."""
        self._give_up_staged()
        self._transport.shutdown()

    def _drop(self) -> None:
        self._give_up_staged()
        if self._is_loaded:
            raise ModelBrokenError("the model has weights of an update that was given up")

    def _stage(self, manifest: WeightManifest, update: UpdateInfo) -> torch.Tensor:
        stream = self._memory(manifest.stream_bytes, update)
        received = _CheckedStream(manifest, update)
        for part in self._receive(stream.split(manifest.buffer_bytes), update):
            received.add(part)
        received.require_its_tag()
        if self._keeps_stream:
            self._kept = _KeptStream(manifest, received.tag)
        return stream

    def _stage_changes(
        self, manifest: WeightManifest, update: UpdateInfo, table: ChangeTable
    ) -> torch.Tensor:
        """Put what changed into the stream that is kept, which stays as it is when the transfer breaks.

        Raises NeedsAllWeightsError, before a byte is received, when it is another one than the sender thinks.
        Raises it also when the bytes do not lead to the weights that were announced: what came may be wrong,
        or what is kept, which is then not used again.
        """
        kept, direct = self._kept, self._settings.direct_load
        if kept is None:
            raise NeedsAllWeightsError("it has kept none")
        if kept.tag.hex() != table.base or kept.manifest != manifest:
            raise NeedsAllWeightsError("it has kept others than those that changed")
        if problems := table.problems(manifest):
            raise WeightSyncError(f"weight update refused: {'; '.join(problems)}")
        if direct is not None and not direct.has_room(table.stream_bytes):
            raise NeedsAllWeightsError(f"it has no memory for {table.stream_bytes} bytes of changes")
        checked = _CheckedStream(manifest, update)
        stream = self._memory(manifest.stream_bytes, update)
        received = torch.empty(table.stream_bytes, dtype=torch.uint8, device=stream.device)
        for _ in self._receive(received.split(manifest.buffer_bytes), update):
            pass
        body, tag = received[:-TAG_BYTES], received[-TAG_BYTES:]
        # none is known to be there until it is checked
        self._kept = None
        try:
            exchange(stream, body, manifest=manifest, table=table)
        except ValueError as error:
            raise NeedsAllWeightsError(f"the changes cannot be read: {error}") from error
        for part in stream[: manifest.num_bytes].split(manifest.buffer_bytes):
            checked.add(part)
        checked.add(tag)
        try:
            checked.require_its_tag()
        except WeightSyncError as error:
            raise NeedsAllWeightsError(str(error)) from error
        self._open_changes = _OpenChanges(kept, table, stream, body)
        self._kept = _KeptStream(manifest, checked.tag)
        return stream

    def _give_up_staged(self) -> None:
        """Drop what was staged. Changes are taken back: the stream before them is kept."""
        self._staged = None
        changes, self._open_changes = self._open_changes, None
        if changes is not None:
            kept = changes.before
            exchange(changes.stream, changes.body, manifest=kept.manifest, table=changes.table)
            self._kept = kept

    def _load(self, manifest: WeightManifest, update: UpdateInfo, *, load: Load) -> None:
        memory = self._memory(BUFFERS_IN_FLIGHT * manifest.buffer_bytes, update)
        received = _CheckedStream(manifest, update)
        parts = self._receive(alternating_buffers(memory, manifest), update)
        tensors = complete_tensors((received.add(part) for part in parts), manifest)
        # what fails before there is a tensor leaves the model as it is
        first = list(islice(tensors, 1))
        try:
            load(chain(first, tensors))
            for name, _ in tensors:
                raise WeightSyncError(f"the model has not taken {name}")
            received.require_its_tag()
        except Exception as error:
            raise ModelBrokenError(f"a transfer into the model failed: {error}") from error

    def _memory(self, num_bytes: int, update: UpdateInfo) -> torch.Tensor:
        return self._transport.memory(
            num_bytes, connection=update.connection, stall_seconds=update.stall_seconds
        )

    def _receive(self, buffers: Iterable[torch.Tensor], update: UpdateInfo) -> Iterator[torch.Tensor]:
        return self._transport.receive(buffers, stall_seconds=update.stall_seconds)

    def _problems(self, manifest: WeightManifest) -> list[str]:
        sent = {entry.name: entry.shape for entry in manifest.tensors}
        found = [] if manifest.num_bytes <= MAX_SYNC_BYTES else [f"{manifest.num_bytes} bytes is no model"]
        return found + self._settings.layout_problems(sent)


class _CheckedStream:
    """Takes the parts of a stream in order, and knows at its end whether they are those that were sent."""

    def __init__(self, manifest: WeightManifest, update: UpdateInfo) -> None:
        """Raises WeightSyncError when nobody here computes the tag that the update names."""
        try:
            self._digest = make_digest(update.tag, bytes.fromhex(update.key), manifest.tensors)
        except LookupError as error:
            raise WeightSyncError(f"weight update refused: {error}") from error
        self._num_left = manifest.num_bytes
        self._tag = b""

    def add(self, part: torch.Tensor) -> torch.Tensor:
        """Take the next part, and give it back. The stream ends with the tag."""
        weights, tag = part[: self._num_left], part[self._num_left :]
        self._digest.update(weights)
        self._num_left -= len(weights)
        self._tag += bytes(tag.cpu().numpy())
        return part

    @property
    def tag(self) -> bytes:
        """The tag that came with the stream."""
        return self._tag

    def require_its_tag(self) -> None:
        """Raises WrongTagError."""
        if not is_same_tag(self._digest.tag(), self._tag):
            raise WrongTagError("the update is refused")
