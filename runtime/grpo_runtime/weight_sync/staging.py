"""A receiver for every backend that carries bytes: it stages all of them, checks them, and hands them over
once.

vLLM is not known here: tests drive it without an engine.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_runtime.weight_sync.digest import KEY_BYTES, is_same_tag
from grpo_runtime.weight_sync.host_copy import HostCopy
from grpo_runtime.weight_sync.interface import Info, ReceiverSettings, WeightSyncError
from grpo_runtime.weight_sync.manifest import WeightManifest, unpack
from grpo_runtime.weight_sync.tags import POLY1305, make_digest

MAX_SYNC_BYTES = 16 * 2**40
"""Far above any model; a manifest beyond it is garbage."""


class ReceiverTransport(Protocol):
    """The end of a connection that carries bytes. Blocking. It knows neither names nor versions."""

    def init(self, info: Info) -> None:
        """Learn of the sender that wrote `info`, letting go of any other."""
        ...

    def memory(self, num_bytes: int, *, connection: str, stall_seconds: float) -> torch.Tensor:
        """Where the stream that follows will be (uint8 [num_bytes]), on the CPU or a GPU.

        Raises WeightSyncError when the sender speaks of another `connection` than this one, or is gone.
        """
        ...

    def receive(self, buffers: Sequence[torch.Tensor], *, stall_seconds: float) -> Iterator[torch.Tensor]:
        """Fill the buffers, which are parts of `memory`, in order; yields the bytes of each as soon as it is
        full, where they are quickest to read, while the next one is on its way.

        Raises WeightSyncError when the sender is gone, or when a buffer takes longer than `stall_seconds`.
        """
        ...

    def shutdown(self) -> None:
        """Let go of the connection. Harmless when there is none."""
        ...


class UpdateInfo(BaseModel):
    """What the verb `update` carries: the manifest of the stream that follows and the key of its tag, or
    `abort`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    manifest: WeightManifest | None = None
    key: Annotated[str, Field(pattern=rf"^([0-9a-f]{{{2 * KEY_BYTES}}})?$", repr=False)] = ""
    tag: Annotated[str, Field(max_length=64)] = POLY1305
    """How the tag is computed; see `tags`."""
    connection: Annotated[str, Field(max_length=128, repr=False)] = ""
    """Which one the stream comes by, where a receiver may have had several."""
    stall_seconds: Annotated[float, Field(gt=0)] = 10.0
    """How long one buffer may take."""
    abort: Annotated[str, Field(max_length=1024)] = ""
    """Why the open update is given up; no stream follows."""


def update_info(weights: HostCopy, *, connection: str = "", stall_seconds: float) -> Info:
    """The `update` of these weights, for the control channel."""
    info = UpdateInfo(
        manifest=weights.manifest,
        key=weights.key.hex(),
        tag=weights.tag_algorithm,
        connection=connection,
        stall_seconds=stall_seconds,
    )
    return info.model_dump(mode="json", exclude={"abort"})


class StagingReceiver:
    """Takes one transfer at a time. Weights leave it only through `take`, whole and checked.

    A manifest that differs from the layout of the settings is refused before a single byte is received. What
    was taken must be copied before the next update, which may use the same memory.
    """

    def __init__(self, transport: ReceiverTransport, settings: ReceiverSettings) -> None:
        self._transport = transport
        self._settings = settings
        self._staged: tuple[WeightManifest, torch.Tensor] | None = None

    def init(self, info: Info) -> None:
        """Learn of a new sender; what an earlier one had staged is dropped."""
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
        self._staged = (update.manifest, self._receive(update.manifest, update))

    def take(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights of a complete, checked update, as views of the staged bytes; they can be taken once.

        Raises WeightSyncError when there is none.
        """
        if self._staged is None:
            raise WeightSyncError("there is nothing to finish: no complete weight update was received")
        (manifest, stream), self._staged = self._staged, None
        return unpack(stream, manifest)

    def shutdown(self) -> None:
        """Let go of the connection and of what was staged."""
        self._staged = None
        self._transport.shutdown()

    def _receive(self, manifest: WeightManifest, update: UpdateInfo) -> torch.Tensor:
        if problems := [*manifest.problems(), *self._problems(manifest)]:
            raise WeightSyncError(f"weight update refused: {'; '.join(problems[:5])}")
        if not update.key:
            raise WeightSyncError("weight update refused: it came without the key of its tag")
        stall = update.stall_seconds
        stream = self._transport.memory(
            manifest.stream_bytes, connection=update.connection, stall_seconds=stall
        )
        tag = stream[manifest.num_bytes :]
        try:
            digest = make_digest(update.tag, bytes.fromhex(update.key), manifest.tensors)
        except LookupError as error:
            raise WeightSyncError(f"weight update refused: {error}") from error
        left = manifest.num_bytes
        for part in self._transport.receive(stream.split(manifest.buffer_bytes), stall_seconds=stall):
            # the last buffer ends with the tag, and may hold nothing else
            digest.update(part[:left])
            left -= len(part[:left])
        if not is_same_tag(digest.tag(), bytes(tag.cpu().numpy())):
            raise WeightSyncError("weight update refused: the bytes received are not the bytes announced")
        return stream

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
