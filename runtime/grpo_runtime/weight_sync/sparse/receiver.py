"""The engine's side of a sparse sync: it keeps what it staged last, and puts what changed into it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from grpo_runtime.weight_sync.interface import NeedsAllWeightsError, WeightSyncError
from grpo_runtime.weight_sync.receiver import CheckedStream, StagingReceiver
from grpo_runtime.weight_sync.sparse.changes import ChangeTable, exchange
from grpo_runtime.weight_sync.stream.manifest import UpdateInfo, WeightManifest
from grpo_runtime.weight_sync.tag import TAG_BYTES


class ChangesInfo(UpdateInfo):
    """What the verb `update` carries in a sparse sync."""

    changes: ChangeTable | None = None
    """Only what changed follows, in place of the stream; then the tag of the whole stream."""


@dataclass(frozen=True)
class _KeptStream:
    """A whole, checked stream that the memory of the transport still has, by its tag."""

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


class SparseReceiver(StagingReceiver):
    """Also takes updates that bring only what changed.

    The memory of its transport keeps the stream that was staged last, and is the same for the next one.
    """

    update_info_class = ChangesInfo

    _kept: _KeptStream | None = None
    _open_changes: _OpenChanges | None = None

    def receive_update(self, manifest: WeightManifest, update: UpdateInfo) -> None:
        """Receive the stream, or what changed in the one that is kept."""
        assert isinstance(update, ChangesInfo)
        if update.changes is None:
            self._kept = None
            super().receive_update(manifest, update)
            return
        try:
            self._stage_changes(manifest, update, update.changes)
        except torch.OutOfMemoryError as error:
            raise NeedsAllWeightsError(f"its GPU has no memory for changes: {error}") from error

    def stage(self, manifest: WeightManifest, stream: torch.Tensor) -> None:
        """Have a whole stream to be taken, and keep it."""
        super().stage(manifest, stream)
        self._kept = _KeptStream(manifest, bytes(stream[-TAG_BYTES:].cpu().numpy()))

    def take(self) -> Iterator[tuple[str, torch.Tensor]] | None:
        """The weights of a complete, checked update; from now on changes are not taken back."""
        weights = super().take()
        self._open_changes = None
        return weights

    def give_up_staged(self) -> None:
        """Drop what was staged. Changes are taken back: the stream before them is kept."""
        super().give_up_staged()
        changes, self._open_changes = self._open_changes, None
        if changes is not None:
            kept = changes.before
            exchange(changes.stream, changes.body, manifest=kept.manifest, table=changes.table)
            self._kept = kept

    def _stage_changes(self, manifest: WeightManifest, update: UpdateInfo, table: ChangeTable) -> None:
        """Put what changed into the stream that is kept, which stays as it is when the transfer breaks.

        Raises NeedsAllWeightsError, before a byte is received, when it is another one than the sender thinks.
        Raises it also when the bytes do not lead to the weights that were announced: what came may be wrong,
        or what is kept, which is then not used again.
        """
        kept, direct = self._kept, self.settings.direct_load
        if kept is None:
            raise NeedsAllWeightsError("it has kept none")
        if kept.tag.hex() != table.base or kept.manifest != manifest:
            raise NeedsAllWeightsError("it has kept others than those that changed")
        if problems := table.problems(manifest):
            raise WeightSyncError(f"weight update refused: {'; '.join(problems)}")
        if direct is not None and not direct.has_room(table.stream_bytes):
            raise NeedsAllWeightsError(f"it has no memory for {table.stream_bytes} bytes of changes")
        checked = CheckedStream(manifest, update)
        stream = self.memory(manifest.stream_bytes, update)
        received = torch.empty(table.stream_bytes, dtype=torch.uint8, device=stream.device)
        for _ in self.receive(received.split(manifest.buffer_bytes), update):
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
        stream[-TAG_BYTES:] = tag
        self.stage(manifest, stream)
        self._open_changes = _OpenChanges(kept, table, stream, body)
