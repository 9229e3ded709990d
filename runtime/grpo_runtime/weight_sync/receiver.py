"""The engine's end of whatever carries bytes: stage everything, check it, hand it over once.

Nothing here knows vLLM, so a test can drive it without an engine.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_runtime.weight_sync.interface import Info, ReceiverTransport, WeightSyncError
from grpo_runtime.weight_sync.packing import Manifest, unpack

MAX_SYNC_BYTES = 16 * 2**40
"""Far above any model; a manifest beyond it is garbage."""


class UpdateInfo(BaseModel):
    """What the verb `update` carries: the manifest of the stream that follows, or `abort`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    manifest: Manifest | None = None
    abort: Annotated[str, Field(max_length=1024)] = ""
    """Why the open update is given up; no stream follows."""


class StagingReceiver:
    """Takes one transfer at a time. Weights leave it only through `take`, whole and checked.

    `shapes` are the tensors the model is made of; a manifest that differs from them is refused before a
    single byte is received. `optional` names may be left out.
    """

    def __init__(
        self,
        transport: ReceiverTransport,
        *,
        shapes: Mapping[str, tuple[int, ...]],
        optional: frozenset[str] = frozenset(),
    ) -> None:
        self._transport = transport
        self._shapes = shapes
        self._optional = optional
        self._staged: tuple[Manifest, torch.Tensor] | None = None

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

    def _receive(self, manifest: Manifest) -> torch.Tensor:
        if problems := [*manifest.problems(), *self._problems(manifest)]:
            raise WeightSyncError(f"weight update refused: {'; '.join(problems[:5])}")
        flat = torch.empty(manifest.num_bytes, dtype=torch.uint8)
        digest = hashlib.sha256()
        self._transport.receive(flat, manifest=manifest, digest=digest)
        if digest.hexdigest() != manifest.sha256:
            raise WeightSyncError("weight update refused: the bytes received are not the bytes announced")
        return flat

    def _problems(self, manifest: Manifest) -> list[str]:
        sent = {entry.name: entry.shape for entry in manifest.tensors}
        found = [] if manifest.num_bytes <= MAX_SYNC_BYTES else [f"{manifest.num_bytes} bytes is no model"]
        return found + layout_problems(sent, wanted=self._shapes, optional=self._optional)


def layout_problems(
    sent: Mapping[str, tuple[int, ...]], *, wanted: Mapping[str, tuple[int, ...]], optional: frozenset[str]
) -> list[str]:
    """Sentences about how the tensors `sent` differ from those `wanted`; `optional` ones may be missing."""
    found = []
    for name, shape in wanted.items():
        if name not in sent and name not in optional:
            found.append(f"{name} is missing")
        elif name in sent and sent[name] != shape:
            found.append(f"{name} has shape {list(sent[name])} but the engine's has {list(shape)}")
    return found + [f"the engine's model has no {name}" for name in sent if name not in wanted]
