"""A receiver for every backend that carries bytes: it stages all of them, checks them, and hands them over
once.

vLLM is not known here: tests drive it without an engine.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_runtime.weight_sync.interface import Info, ReceiverSettings, WeightSyncError
from grpo_runtime.weight_sync.packing import WeightManifest, unpack

MAX_SYNC_BYTES = 16 * 2**40
"""Far above any model; a manifest beyond it is garbage."""


class Digest(Protocol):
    """The part of hashlib's objects that a transport uses."""

    def update(self, data: memoryview, /) -> None: ...


class ReceiverTransport(Protocol):
    """The end of a connection that carries bytes. Blocking. It knows neither names nor versions."""

    def init(self, info: Info) -> None:
        """Connect to the sender that wrote `info`, letting go of any other."""
        ...

    def receive(self, flat: torch.Tensor, *, manifest: WeightManifest, digest: Digest) -> None:
        """Fill `flat` (uint8 [num_bytes], CPU) in order, feeding each part to `digest` once it is there.

        Raises WeightSyncError when the sender is gone or its deadline passes.
        """
        ...

    def shutdown(self) -> None:
        """Let go of the connection. Harmless when there is none."""
        ...


class UpdateInfo(BaseModel):
    """What the verb `update` carries: the manifest of the stream that follows, or `abort`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    manifest: WeightManifest | None = None
    abort: Annotated[str, Field(max_length=1024)] = ""
    """Why the open update is given up; no stream follows."""


class StagingReceiver:
    """Takes one transfer at a time. Weights leave it only through `take`, whole and checked.

    A manifest that differs from the layout of the settings is refused before a single byte is received.
    """

    def __init__(self, transport: ReceiverTransport, settings: ReceiverSettings) -> None:
        self._transport = transport
        self._settings = settings
        self._staged: tuple[WeightManifest, torch.Tensor] | None = None

    def init(self, info: Info) -> None:
        """Connect to a new sender; what an earlier one had staged is dropped."""
        self._staged = None
        self._transport.init(info)

    def start(self) -> None:
        """Open an update."""
        self._staged = None

    def update(self, info: Info) -> None:
        """Receive and check the whole stream, or give the update up.

        Raises WeightSyncError when anything is wrong with it, and always for an abort: an update that was
        given up must not be finished.
        """
        self._staged = None
        try:
            update = UpdateInfo.model_validate_json(json.dumps(info))
        except ValidationError as error:
            raise WeightSyncError(f"weight update not understood: {error}") from error
        if update.manifest is None:
            raise WeightSyncError(f"weight update given up: {update.abort or 'no reason given'}")
        self._staged = (update.manifest, self._receive(update.manifest))

    def take(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights of a complete, checked update; they can be taken once.

        Raises WeightSyncError when there is none.
        """
        if self._staged is None:
            raise WeightSyncError("there is nothing to finish: no complete weight update was received")
        (manifest, flat), self._staged = self._staged, None
        return unpack(flat, manifest)

    def shutdown(self) -> None:
        """Let go of the connection and of what was staged."""
        self._staged = None
        self._transport.shutdown()

    def _receive(self, manifest: WeightManifest) -> torch.Tensor:
        if problems := [*manifest.problems(), *self._problems(manifest)]:
            raise WeightSyncError(f"weight update refused: {'; '.join(problems[:5])}")
        flat = torch.empty(manifest.num_bytes, dtype=torch.uint8)
        digest = hashlib.sha256()
        self._transport.receive(flat, manifest=manifest, digest=digest)
        if digest.hexdigest() != manifest.sha256:
            raise WeightSyncError("weight update refused: the bytes received are not the bytes announced")
        return flat

    def _problems(self, manifest: WeightManifest) -> list[str]:
        sent = {entry.name: entry.shape for entry in manifest.tensors}
        found = [] if manifest.num_bytes <= MAX_SYNC_BYTES else [f"{manifest.num_bytes} bytes is no model"]
        return found + layout_problems(sent, settings=self._settings)


def layout_problems(sent: Mapping[str, tuple[int, ...]], *, settings: ReceiverSettings) -> list[str]:
    """Sentences about how the tensors `sent` (shapes by name) differ from those of the engine's model."""
    found = []
    for name, shape in settings.layout.items():
        if name not in sent and name not in settings.optional:
            found.append(f"{name} is missing")
        elif name in sent and sent[name] != shape:
            found.append(f"{name} has shape {list(sent[name])} but the engine's has {list(shape)}")
    return found + [f"the engine's model has no {name}" for name in sent if name not in settings.layout]
