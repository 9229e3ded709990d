"""The engine's end of every backend that carries bytes: it stages them, checks them, and hands them over
once.

Where there is no memory for that, they go into the model while they arrive (`DirectLoad`), and an engine
whose model can be neither served nor mended ends. vLLM is not known here: tests drive it without an engine.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Protocol

import torch
from pydantic import ValidationError

from grpo_runtime.weight_sync.interface import (
    Info,
    Load,
    ModelBrokenError,
    ReceiverSettings,
    WeightSyncError,
    WrongTagError,
)
from grpo_runtime.weight_sync.stream.manifest import (
    BUFFERS_IN_FLIGHT,
    UpdateInfo,
    WeightManifest,
    alternating_buffers,
    complete_tensors,
    unpack,
)
from grpo_runtime.weight_sync.tag import is_same_tag, make_digest

log = logging.getLogger(__name__)
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


class StagingReceiver:
    """Takes one transfer at a time. Weights leave it only through `take`, whole and checked.

    A manifest that differs from the layout of the settings is refused before a single byte is received. What
    was taken must be copied before the next update, which may use the same memory.
    """

    update_info_class = UpdateInfo
    """The model that an update is parsed as."""

    def __init__(self, transport: ReceiverTransport, settings: ReceiverSettings) -> None:
        self.transport = transport
        self.settings = settings
        self._staged: tuple[WeightManifest, torch.Tensor] | None = None
        self._is_loaded = False
        """Whether the model has weights that no `finish` has asked for."""

    def init(self, info: Info) -> None:
        """Learn of a new sender; what an earlier one had staged is dropped."""
        self._drop()
        self.transport.init(info)

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
            update = self.update_info_class.model_validate_json(json.dumps(info))
        except ValidationError as error:
            raise WeightSyncError(f"weight update not understood: {error}") from error
        if (manifest := update.manifest) is None:
            raise WeightSyncError(f"weight update aborted: {update.abort or 'no reason given'}")
        if problems := [*manifest.problems(), *self._problems(manifest)]:
            raise WeightSyncError(f"weight update refused: {'; '.join(problems[:5])}")
        if not update.key:
            raise WeightSyncError("weight update refused: it came without the key of its tag")
        self.receive_update(manifest, update)

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
        return unpack(stream, manifest)

    def shutdown(self) -> None:
        """Let go of the connection and of what was staged."""
        self.give_up_staged()
        self.transport.shutdown()

    def receive_update(self, manifest: WeightManifest, update: UpdateInfo) -> None:
        """Receive the stream of an update that is found to be for this model, to be taken later or into the
        model at once."""
        direct = self.settings.direct_load
        if direct is None or direct.has_room(self.transport.missing_bytes(manifest.stream_bytes)):
            self.stage(manifest, self._received(manifest, update))
        else:
            self._load(manifest, update, load=direct.load)
            self._is_loaded = True

    def stage(self, manifest: WeightManifest, stream: torch.Tensor) -> None:
        """Have a whole, checked stream to be taken."""
        self._staged = (manifest, stream)

    def give_up_staged(self) -> None:
        """Drop what was staged and not taken."""
        self._staged = None

    def memory(self, num_bytes: int, update: UpdateInfo) -> torch.Tensor:
        """Where the bytes of the update will be."""
        return self.transport.memory(
            num_bytes, connection=update.connection, stall_seconds=update.stall_seconds
        )

    def receive(self, buffers: Iterable[torch.Tensor], update: UpdateInfo) -> Iterator[torch.Tensor]:
        """Fill the buffers with the bytes of the update, and yield each as soon as it is full."""
        return self.transport.receive(buffers, stall_seconds=update.stall_seconds)

    def _drop(self) -> None:
        self.give_up_staged()
        if self._is_loaded:
            raise ModelBrokenError("the model has weights of an update that was aborted")

    def _received(self, manifest: WeightManifest, update: UpdateInfo) -> torch.Tensor:
        """The stream, once all of it is there and is what was announced."""
        stream = self.memory(manifest.stream_bytes, update)
        checked = CheckedStream(manifest, update)
        for part in self.receive(stream.split(manifest.buffer_bytes), update):
            checked.add(part)
        checked.require_its_tag()
        return stream

    def _load(self, manifest: WeightManifest, update: UpdateInfo, *, load: Load) -> None:
        memory = self.memory(BUFFERS_IN_FLIGHT * manifest.buffer_bytes, update)
        received = CheckedStream(manifest, update)
        parts = self.receive(alternating_buffers(memory, manifest), update)
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

    def _problems(self, manifest: WeightManifest) -> list[str]:
        sent = {entry.name: entry.shape for entry in manifest.tensors}
        found = [] if manifest.num_bytes <= MAX_SYNC_BYTES else [f"{manifest.num_bytes} bytes is no model"]
        return found + self.settings.layout_problems(sent)


class CheckedStream:
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

    def require_its_tag(self) -> None:
        """Raises WrongTagError."""
        if not is_same_tag(self._digest.tag(), self._tag):
            raise WrongTagError("the update is refused")


def end_engine(why: str) -> None:
    """End this process, one worker of an engine, and the engine with it: it is started again and gets the
    weights as a new one. From any thread."""
    log.critical("this engine ends, to be started again: %s", why)
    # at once: vLLM would answer an error and continue, and a call of NCCL cannot be interrupted
    os._exit(1)
