"""The engine's end: reads the version that an update names, each worker for itself."""

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_runtime.weight_sync.disk.store import VersionStore
from grpo_runtime.weight_sync.disk.stored_stream import StoredStream
from grpo_runtime.weight_sync.disk.version_reader import VersionReader, open_version
from grpo_runtime.weight_sync.interface import Info, WeightSyncError


class _StoreInit(BaseModel):
    """What the verb `init` carries: a text by which the sender is known again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sender: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class StoreReceiver:
    """The end in one worker; see `ReceiverTransport`. Where the store is it knows from its own pod, never
    from the wire."""

    def __init__(self, open_store: Callable[[], VersionStore]) -> None:
        self._open_store = open_store
        self._store: VersionStore | None = None
        self._sender = ""
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._reader: VersionReader | None = None

    def init(self, info: Info) -> None:
        """Learn of a new sender."""
        self.shutdown()
        try:
            self._sender = _StoreInit.model_validate(dict(info)).sender
        except ValidationError as error:
            raise WeightSyncError(f"disk init not understood: {error}") from error

    def missing_bytes(self, num_bytes: int) -> int:
        """See `ReceiverTransport`."""
        return 0 if len(self._memory) == num_bytes else num_bytes

    def memory(self, num_bytes: int, *, connection: str, stall_seconds: float) -> torch.Tensor:
        """Memory of this worker, the same for every update, once the version is found."""
        stream = StoredStream.parse(connection)
        if stream.sender != self._sender:
            raise WeightSyncError("this engine has another sender than this one: it must init first")
        if self._store is None:
            self._store = self._open_store()
        manifest = open_version(self._store, stream.name)
        self._reader = VersionReader(self._store, stream.name, manifest, tag=stream.tag)
        if len(self._memory) != num_bytes:
            # first without the old one
            self._memory = torch.empty(0, dtype=torch.uint8)
            self._memory = torch.empty(num_bytes, dtype=torch.uint8)
        return self._memory

    def receive(self, buffers: Iterable[torch.Tensor], *, stall_seconds: float) -> Iterator[torch.Tensor]:
        """Fill the buffers in order."""
        assert self._reader is not None  # `memory` came before
        reader, self._reader = self._reader, None
        given: list[torch.Tensor] = []

        def targets() -> Iterator[memoryview]:
            for buffer in buffers:
                given[:] = [buffer]
                yield buffer.numpy().data

        for _ in reader.fill(targets()):
            yield given[0]

    def shutdown(self) -> None:
        """Forget the sender."""
        self._sender = ""
        self._reader = None
